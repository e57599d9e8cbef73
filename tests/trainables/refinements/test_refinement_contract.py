import io
from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.refinements import (
    REFINEMENTS,
    FittedRefinement,
    HeadTrainer,
    _trainer,
    build_refinement,
)
from trainables.refinements._trainer import MaskedSGD

NAMES = [
    name for name in REFINEMENTS.names() if not issubclass(REFINEMENTS.get(name), FittedRefinement)
]
Problem = tuple[list[Tensor], Tensor]


def run(trainer: HeadTrainer) -> HeadTrainer:
    for _ in range(trainer.refinement.epochs - trainer.epoch):
        trainer.train_epoch()
    return trainer


@torch.no_grad()
def outputs(trainer: HeadTrainer, problem: Problem) -> Tensor:
    return trainer.head(problem[0][0])


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_weights_and_other_seed_other_weights(name, make_trainer):
    torch.manual_seed(1)
    first = run(make_trainer(name)).head.state_dict()
    torch.manual_seed(2)
    second = run(make_trainer(name)).head.state_dict()
    other = run(make_trainer(name, seed=1)).head.state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    weights = [key for key in first if key.endswith("weight")]
    assert weights
    assert not any(torch.equal(first[key], other[key]) for key in weights)


@pytest.mark.parametrize("name", NAMES)
def test_global_generator_is_left_alone(name, make_trainer):
    before = torch.get_rng_state()
    run(make_trainer(name))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extra", [{}, {"resample": "epoch"}])
def test_resumed_training_is_bitwise_the_uninterrupted_one(name, extra, make_trainer):
    if not extra.keys() <= set(REFINEMENTS.parameter_names(name)):
        extra = {}
    whole = make_trainer(name, **extra)
    tracked = [whole.train_epoch() for _ in range(4)]
    interrupted = make_trainer(name, **extra)
    interrupted.train_epoch()
    interrupted.train_epoch()
    file = io.BytesIO()
    torch.save(interrupted.state_dict(), file)
    file.seek(0)
    resumed = make_trainer(name, seed=99, **extra)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert [resumed.train_epoch(), resumed.train_epoch()] == tracked[2:]
    assert resumed.epoch == 4
    expected = whole.head.state_dict()
    for key, tensor in resumed.head.state_dict().items():
        assert torch.equal(tensor, expected[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_state_is_a_copy(name, make_trainer):
    trainer = make_trainer(name)
    trainer.train_epoch()
    state = trainer.state_dict()
    parts = ("head", "velocities")
    kept = {part: {k: value.clone() for k, value in state[part].items()} for part in parts}
    trainer.train_epoch()
    for part in parts:
        assert all(torch.equal(state[part][key], value) for key, value in kept[part].items())


@pytest.mark.parametrize("name", NAMES)
def test_inference_depends_on_the_row_alone(name, make_trainer, problem):
    trainer = run(make_trainer(name))
    features = problem[0][0]
    with torch.no_grad():
        whole, again = trainer.head(features), trainer.head(features)
        pieces = torch.cat([trainer.head(piece) for piece in features.split(37)])
    assert torch.equal(whole, again)
    assert torch.allclose(whole, pieces, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_head_restored_by_its_state_alone_gives_the_same_logits(name, make_trainer, problem):
    trainer = run(make_trainer(name))
    head = build_refinement(name).build_head(problem[0][0].shape[1], 4)
    head.load_state_dict(trainer.head.state_dict())
    with torch.no_grad():
        assert torch.equal(head.eval()(problem[0][0]), outputs(trainer, problem))


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_means_over_the_rows_of_all_steps(name, make_trainer, monkeypatch):
    trainer = make_trainer(name)
    trainer.batch_size = 60  # A short step at the end counts by its rows.
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    ask = trainer.refinement.batch_loss

    def noted(head: Any, features: Tensor, targets: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        loss, logits = ask(head, features, targets, noise)
        seen.append((loss.detach().expand(len(targets)), logits.detach(), targets))
        return loss, logits

    monkeypatch.setattr(trainer.refinement, "batch_loss", noted)
    figures = trainer.train_epoch()
    losses, logits, targets = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert len(targets) == 256
    confidence, predicted = logits.softmax(1).max(1)
    expected = {
        "train_loss": losses.mean(),
        "train_accuracy": (predicted == targets).float().mean(),
        "train_confidence": confidence.mean(),
    }
    assert {key: figures[key] for key in expected} == pytest.approx(
        {key: float(value) for key, value in expected.items()}, abs=1e-5
    )


@pytest.mark.parametrize("feedback", ["dense", "deployed"])
def test_a_second_pass_measures_all_rows_in_parts_of_any_size(
    feedback, make_trainer, problem, monkeypatch
):
    monkeypatch.setattr(_trainer, "EVALUATION_BATCH", 100)
    trainer, told = make_trainer("macal", feedback=feedback), []
    end = trainer.refinement.end_epoch

    @torch.no_grad()
    def noted(head: Any, accuracy: float, confidence: float) -> dict[str, float]:
        logits = trainer.refinement.feedback_logits(head, problem[0][0])
        confidences, predicted = logits.softmax(1).max(1)
        expected = (predicted == problem[1]).double().mean(), confidences.mean()
        told.append(([accuracy, confidence], [float(value) for value in expected]))
        return end(head, accuracy, confidence)

    monkeypatch.setattr(trainer.refinement, "end_epoch", noted)
    trainer.train_epoch()
    ((found, expected),) = told
    assert found == pytest.approx(expected, abs=1e-6)


def test_every_epoch_of_every_seed_has_an_order_and_draws_of_its_own(make_trainer):
    orders, noises = [], []
    for seed in (0, 1):
        trainer = make_trainer("macal", seed=seed)
        for _ in range(3):
            order, noise = trainer.draw_order()
            assert sorted(order.tolist()) == list(range(256))
            orders.append(tuple(order.tolist()))
            noises.append(float(torch.rand((), generator=noise)))
    assert len(set(orders)) == len(set(noises)) == 6


def test_a_linear_head_is_trained_as_a_plain_loop_would(make_trainer, problem):
    trainer, twin = (make_trainer("tst", lr=0.03) for _ in range(2))
    plain = torch.nn.Linear(12, 4)
    plain.load_state_dict(twin.head.state_dict())
    steps = torch.optim.SGD(plain.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    for epoch in range(3):
        trainer.train_epoch()
        order, _ = twin.draw_order()
        for rows in order.split(16):
            steps.zero_grad()
            logits = plain(problem[0][epoch % 2][rows])
            torch.nn.functional.cross_entropy(logits, problem[1][rows]).backward()
            steps.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(trainer.head.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "parameters", "sizes"),
    [
        ("tst", {}, [(5, 6)]),
        ("tst", {"latent_dim": 1}, [(3, 6), (1, 3), (5, 1)]),
        ("tst", {"latent_dim": 2}, [(6, 6), (2, 6), (5, 2)]),
        ("vtst", {"latent_dim": 2}, [(6, 6), (2, 6)] * 2 + [(5, 2)]),
        ("vtst", {}, [(384, 6), (128, 384)] * 2 + [(5, 128)]),
        ("macal", {}, [(128, 6), (5, 128)]),
        ("macal", {"hidden": 3}, [(3, 6), (5, 3)]),
        ("macal", {"restructure": False}, [(5, 6)]),
    ],
)
def test_layers_of_a_head(name, parameters, sizes):
    head = build_refinement(name, **parameters).build_head(6, 5)
    assert [tuple(weight.shape) for weight in head.parameters() if weight.ndim == 2] == sizes


@pytest.mark.parametrize("name", NAMES)
def test_extreme_features_stay_finite_at_inference(name):
    head = build_refinement(name).build_head(6, 3).eval()
    features = torch.tensor([[1e4, -1e4, 1e4, -1e4, 0.0, 1e4]])
    with torch.no_grad():
        assert head(features).isfinite().all()


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("macal", "gamma", 0.0),
        ("macal", "q0", 1.0),
        ("macal", "eta_init", 0.0),
        ("macal", "eta_final", 0.0),
        ("macal", "hidden", 0),
        ("macal", "sparsity", "static"),
        ("macal", "accept", True),
        ("macal", "feedback", "test"),
        ("tst", "latent_dim", -1),
        ("vtst", "latent_dim", 0),
        ("vtst", "beta", -0.5),
        ("vtst", "samples", 0),
        *((name, key, 0) for name in NAMES for key in ("epochs", "lr")),
    ],
)
def test_invalid_arguments_of_a_refinement_are_refused(name, key, value):
    with pytest.raises(ValueError, match=f"{key}={value!r}"):
        build_refinement(name, **{key: value})


def test_masked_weight_and_its_velocity_wait():
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = MaskedSGD({"w": weight}, lr=0.1, momentum=0.9, weight_decay=0.1)
    weight.grad = torch.tensor([1.0, 1.0])
    optimiser.step({})
    held, velocity = weight.detach().clone(), optimiser.velocities["w"].clone()
    optimiser.step({"w": torch.tensor([True, False])})
    assert weight[1] == held[1]
    assert optimiser.velocities["w"][1] == velocity[1]
    assert weight[0] < held[0]
    assert optimiser.velocities["w"][0] != velocity[0]


def test_parameters_without_gradient_stay():
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = MaskedSGD({"w": weight}, lr=0.1, momentum=0.9, weight_decay=0.1)
    optimiser.step({})
    assert torch.equal(weight.detach(), torch.ones(2))


def test_trainer_refuses_views_that_do_not_fit():
    labels = torch.zeros(4, dtype=torch.int64)
    settings = {"num_classes": 2, "batch_size": 2, "momentum": 0.9, "weight_decay": 0.0, "seed": 0}
    with pytest.raises(ValueError, match="expected at least one view"):
        HeadTrainer(build_refinement("tst"), [], labels, **settings)
    views = [torch.zeros(4, 5), torch.zeros(3, 5)]
    with pytest.raises(
        ValueError, match=r"views\[1\]: expected shape \(4, D\), a row per label, got \(3, 5\)"
    ):
        HeadTrainer(build_refinement("tst"), views, labels, **settings)

    with pytest.raises(
        ValueError, match=r"views\[0\]: expected shape \(4, D\), a row per label, got \(4,\)"
    ):
        HeadTrainer(build_refinement("tst"), [torch.zeros(4)], labels, **settings)
