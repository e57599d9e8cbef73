from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.refinements import HeadTrainer, build_refinement
from trainables.refinements.macal import MaskedHead

EPOCHS = 3
# How what a reading leaves out is read here, whatever the defaults.
COMMON: dict[str, Any] = {
    "feedback": "dense",
    "q_role": "keep",
    "inference": "scaled",
    "resample": "epoch",
    "optimizer": "masked",
    "restrict_gradient": True,
    "sparsity": "decaying",
    "gamma": 0.8,
    "q0": 0.5,
    "eta_init": 0.1,
    "eta_final": 0.001,
}
READINGS: list[dict[str, Any]] = [
    {"feedback": "dense"},
    {"feedback": "training"},
    {"feedback": "deployed"},
    {"q_role": "drop", "feedback": "dense"},
    {"q_role": "drop", "feedback": "training"},
    {"q_role": "drop", "feedback": "deployed"},
    {"q_role": "drop", "feedback": "validation"},
    {"q_role": "drop", "feedback": "deployed", "inference": "dense"},
    {"q_role": "drop", "feedback": "deployed", "inference": "last"},
    {"q_role": "drop", "feedback": "deployed", "resample": "batch"},
    {"q_role": "drop", "feedback": "deployed", "resample": "batch", "inference": "last"},
    {"optimizer": "plain"},
    {"optimizer": "plain", "resample": "batch"},
    {"optimizer": "plain", "restrict_gradient": False},
    {"restructure": False, "q_role": "drop", "resample": "batch"},
    {"sparsity": "fixed", "q0": 0.3},
    {"sparsity": "adaptive", "eta_init": 0.07},
    {"gamma": 0.3, "eta_final": 0.02},
]


class Naive:
    """MaC-Cal as a reader of the paper would write it down, with the draws of a trainer."""

    def __init__(self, trainer: HeadTrainer, reading: dict[str, Any]) -> None:
        self.reading = reading
        self.trainer = trainer
        self.settings = trainer.optimizer
        state = {n: t.detach().clone() for n, t in trainer.head.named_parameters()}
        self.weights = [t.requires_grad_() for n, t in state.items() if n.endswith("weight")]
        self.biases = [t.requires_grad_() for n, t in state.items() if n.endswith("bias")]
        self.masks = [torch.ones_like(weight) for weight in self.weights]
        self.sgd = torch.optim.SGD(
            [*self.weights, *self.biases],
            lr=self.settings.lr,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
        )
        self.velocities = [torch.zeros_like(weight) for weight in self.weights]
        self.q = self.q_used = reading["q0"]

    @property
    def kept(self) -> float:
        return self.q_used if self.reading["q_role"] == "keep" else 1 - self.q_used

    def draw(self, noise: torch.Generator) -> None:
        for position, weight in enumerate(self.weights):
            self.masks[position] = (torch.rand(weight.shape, generator=noise) < self.kept).float()

    def forward(self, features: Tensor, weights: list[Tensor]) -> Tensor:
        for position, (weight, bias) in enumerate(zip(weights, self.biases, strict=True)):
            features = (features.relu() if position else features) @ weight.T + bias
        return features

    def deployed(self, features: Tensor) -> Tensor:
        factors: dict[str, list[Any]] = {
            "scaled": [self.kept] * len(self.weights),
            "dense": [1.0] * len(self.weights),
            "last": list(self.masks),
        }
        chosen = factors[self.reading["inference"]]
        return self.forward(features, [w * f for w, f in zip(self.weights, chosen, strict=True)])

    def step(self, features: Tensor, targets: Tensor) -> Tensor:
        masked = [w.detach() * m for w, m in zip(self.weights, self.masks, strict=True)]
        for weight in masked:
            weight.requires_grad_()
        logits = self.forward(features, masked)
        loss = F.cross_entropy(logits, targets)
        slopes = torch.autograd.grad(loss, [*masked, *self.biases])
        self._move(list(slopes[: len(masked)]), slopes[len(masked) :])
        return logits.detach()

    def _move(self, slopes: list[Tensor], others: tuple[Tensor, ...]) -> None:
        restricted = self.reading["restrict_gradient"]
        if restricted:
            slopes = [slope * mask for slope, mask in zip(slopes, self.masks, strict=True)]
        for parameter, slope in zip([*self.weights, *self.biases], [*slopes, *others], strict=True):
            parameter.grad = slope
        if restricted and self.reading["optimizer"] == "masked":
            self._move_masked()
        self.sgd.step()

    def _move_masked(self) -> None:
        """Move single weights by hand, and leave the biases to torch."""
        for weight, mask, velocity in zip(self.weights, self.masks, self.velocities, strict=True):
            slope, weight.grad = weight.grad, None
            for place in mask.nonzero().tolist():
                at = tuple(place)
                decayed = slope[at] + self.settings.weight_decay * weight.data[at]
                velocity[at] = self.settings.momentum * velocity[at] + decayed
                weight.data[at] -= self.settings.lr * velocity[at]

    def train_epoch(self, epoch: int) -> float:
        view, labels = self.trainer._views[epoch % 2], self.trainer.labels
        order, noise = self.trainer.draw_order()
        self.q_used = self.q
        if self.reading["resample"] == "epoch":
            self.draw(noise)
        seen = torch.empty(len(view), 4)
        for rows in order.split(self.trainer.batch_size):
            if self.reading["resample"] == "batch":
                self.draw(noise)
            seen[rows] = self.step(view[rows], labels[rows])
        held_out, answers = self.trainer.held_out
        outputs, labels = {
            "training": lambda: (seen, labels),
            "dense": lambda: (self.forward(view, list(self.weights)), labels),
            "deployed": lambda: (self.deployed(view), labels),
            "validation": lambda: (self.deployed(held_out), answers),
        }[self.reading["feedback"]]()
        confidence, predicted = outputs.detach().softmax(1).max(1)
        accuracy = float((predicted == labels).double().mean())
        change = float(confidence.double().mean()) - self.reading["gamma"] * accuracy
        bound = self.bound(epoch)
        self.q = min(1.0, max(0.0, self.q + min(bound, max(-bound, change))))
        return self.q

    def bound(self, epoch: int) -> float:
        first, last = self.reading["eta_init"], self.reading["eta_final"]
        passed = (epoch + 1) / EPOCHS
        decaying = first ** (1 - passed) * last**passed
        return {"fixed": 0.0, "adaptive": first, "decaying": decaying}[self.reading["sparsity"]]


@pytest.mark.full
@pytest.mark.parametrize("reading", READINGS, ids=str)
def test_a_reading_equals_its_naive_implementation(reading, make_trainer, problem):
    reading = {**COMMON, **reading}
    settings = {"epochs": EPOCHS, "hidden": 10, "lr": 0.02, **reading}
    trainer, twin = make_trainer("macal", **settings), make_trainer("macal", **settings)
    naive = Naive(twin, reading)
    for epoch in range(EPOCHS):
        assert trainer.train_epoch()["next_q"] == pytest.approx(naive.train_epoch(epoch), abs=2e-3)
        # A row whose two largest logits are equal but for rounding may count as right or wrong.
        naive.q = float(trainer.head.get_buffer("next_q"))
    with torch.no_grad():
        found, expected = trainer.head(problem[0][0]), naive.deployed(problem[0][0])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("role", ["keep", "drop"])
def test_q_is_the_share_that_its_role_says(role):
    head = MaskedHead((200, 100, 50), 0.3, q_role=role)
    head.resample(torch.Generator().manual_seed(0))
    share = 0.3 if role == "keep" else 0.7
    for mask in head.masks().values():
        assert float(mask.float().mean()) == pytest.approx(share, abs=0.02)


def ended_at(q: float, **reading: Any) -> list[str]:
    refinement = build_refinement("macal", **reading)
    head = refinement.build_head(3, 2)
    head.get_buffer("q").fill_(q)
    return refinement.remarks(head)


@pytest.mark.parametrize(
    ("role", "q", "what"),
    [
        (
            "keep",
            1.0,
            "q ended at 1, where the mask keeps almost all weights, like a plain classifier",
        ),
        ("keep", 0.0, "q ended at 0, where the mask keeps almost no weights"),
        ("drop", 1.0, "q ended at 1, where the mask keeps almost no weights"),
        (
            "drop",
            0.0,
            "q ended at 0, where the mask keeps almost all weights, like a plain classifier",
        ),
    ],
)
def test_a_q_at_an_end_is_remarked_upon(role, q, what):
    advice = "try another gamma in (0, 1), q_role or feedback"
    assert ended_at(q, q_role=role) == [f"macal: {what}; {advice}"]


def test_a_q_that_is_meant_to_end_at_a_limit_gets_no_remark():
    assert ended_at(0.5) == []
    assert ended_at(0.99, sparsity="fixed", q0=0.99) == []


GIVEN_BY_VARIANT = ("q_role", "optimizer", "resample", "feedback")


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, ("drop", "plain", "batch", "deployed")),
        ({"variant": "ours"}, ("drop", "plain", "batch", "deployed")),
        ({"variant": "paper"}, ("keep", "masked", "epoch", "training")),
        ({"variant": "paper", "q_role": "drop"}, ("drop", "masked", "epoch", "training")),
        ({"variant": "ours", "feedback": "dense"}, ("drop", "plain", "batch", "dense")),
    ],
)
def test_a_variant_gives_the_values_that_are_not_given(given, values):
    refinement = build_refinement("macal", **given)
    assert tuple(getattr(refinement, name) for name in GIVEN_BY_VARIANT) == values


@pytest.mark.parametrize(("variant", "most"), [("paper", 1.0), ("ours", 1 - 1 / 16)])
def test_q_reaches_1_as_printed_alone(variant, most):
    refinement = build_refinement("macal", variant=variant, q0=0.98, hidden=16, gamma=0.5)
    head = refinement.build_head(3, 4)
    refinement.start_epoch(head, 0, torch.Generator().manual_seed(0))
    assert refinement.end_epoch(head, accuracy=0.5, confidence=0.9)["next_q"] == most
    head.get_buffer("q").fill_(most)
    assert refinement.remarks(head), "a q at its bound is remarked upon"
    head.get_buffer("q").fill_(0.99 * most)
    assert not refinement.remarks(head)
