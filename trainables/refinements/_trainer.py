from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from trainables.common.devices import concrete
from trainables.refinements._base import Refinement

EVALUATION_BATCH = 8192


class MaskedSGD:
    """SGD with momentum and weight decay that can freeze single weights.

    Without masks it equals ``torch.optim.SGD``. A gradient of zero would not freeze a weight:
    velocity and weight decay still change it. Here a frozen weight keeps its value and velocity,
    and continues with them later.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self._parameters = dict(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.velocities = {n: torch.zeros_like(p) for n, p in self._parameters.items()}

    @torch.no_grad()
    def step(self, movable: Mapping[str, Tensor]) -> None:
        """Update every weight whose entry in its parameter's mask is not False."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            velocity = self.velocities[name]
            gradient = parameter.grad.add(parameter, alpha=self.weight_decay)
            moved = velocity.mul(self.momentum).add_(gradient)
            mask = movable.get(name)
            velocity.copy_(moved if mask is None else torch.where(mask, moved, velocity))
            moved = moved if mask is None else torch.where(mask, moved, 0)
            parameter.add_(moved, alpha=-self.lr)

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self._parameters.values():
            parameter.grad = None


class HeadTrainer:
    """Trains a refinement's head on cached features, one epoch per call.

    The same arguments give the same weights, also after resuming from a state: all random numbers
    come from one generator on the CPU, which seeds a generator on the device in every epoch.

    Args:
        refinement: The refinement; its ``lr`` is constant.
        views: The training set's features, one (N, D) tensor per augmented view; epoch e uses view
            e modulo their number.
        labels: (N,), int64.
        num_classes: K.
        batch_size: Samples per step; the last step of an epoch takes the rest.
        momentum: SGD momentum, 0.9 in the MaC-Cal paper.
        weight_decay: L2 penalty, 5e-4 in the MaC-Cal paper.
        seed: Determines initial weights, order and masks.
        device: The device; features are moved there one view at a time.
        held_out: Features (M, D) and labels (M,), on the device, for refinements that measure
            accuracy and confidence there.

    Raises:
        ValueError: If there are no views, a view and the labels differ in length, or the held-out
            rows that the refinement needs are missing.

    Attributes:
        head: The head, in eval mode between epochs.
        epoch: Number of trained epochs.
        optimizer: The head's optimiser.
    """

    def __init__(
        self,
        refinement: Refinement,
        views: Sequence[Tensor],
        labels: Tensor,
        *,
        num_classes: int,
        batch_size: int,
        momentum: float,
        weight_decay: float,
        seed: int,
        device: torch.device | str = "cpu",
        held_out: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        _check_views(views, labels)
        if refinement.held_out and held_out is None:
            raise ValueError("held_out is missing, but the refinement measures accuracy there")
        self.held_out = held_out
        self.refinement = refinement
        self.epoch = 0
        self._views = views
        self._device = concrete(device)
        self.labels = labels.to(self._device)
        self.batch_size = batch_size
        self._generator = Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._draw_seed())
            head = refinement.build_head(views[0].shape[1], num_classes)
        self.head = head.to(self._device).eval()
        parameters = dict(self.head.named_parameters())
        self.optimizer = MaskedSGD(parameters, refinement.lr, momentum, weight_decay)

    def train_epoch(self) -> dict[str, float]:
        """Train one epoch.

        Returns:
            ``train_loss`` (mean over samples), ``train_accuracy`` and ``train_confidence`` (of the
            outputs used for training, as fractions), and the refinement's own metrics. The loss may
            be nan or inf.
        """
        view = self.view()
        means = self._train(view)
        second = self.refinement.second_pass
        feedback = self._evaluate(*self.feedback_rows(view)) if second else means[1:]
        return self.end_epoch(*means, *feedback)

    def feedback_rows(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and labels for a second pass: the epoch's view or held-out rows."""
        held_out = self.held_out if self.refinement.held_out else None
        return held_out or (view, self.labels)

    def view(self) -> Tensor:
        """Return the features (N, D) of the present epoch, on the device."""
        return self._views[self.epoch % len(self._views)].to(self._device)

    def draw_order(self) -> tuple[Tensor, Generator]:
        """Draw an epoch's order of samples (N,); return it with a generator for the epoch."""
        order = torch.randperm(len(self.labels), generator=self._generator).to(self._device)
        return order, Generator(self._device).manual_seed(self._draw_seed())

    def end_epoch(
        self, loss: float, accuracy: float, confidence: float, *feedback: float
    ) -> dict[str, float]:
        """Finish an epoch with its ``feedback`` (accuracy, confidence); return its metrics."""
        self.head.eval()
        figures = self.refinement.end_epoch(self.head, *feedback)
        self.epoch += 1
        means = {"train_loss": loss, "train_accuracy": accuracy, "train_confidence": confidence}
        return means | figures

    def state_dict(self) -> dict[str, Any]:
        """Return the state for ``load_state_dict``, only tensors and plain numbers."""
        return {
            "epoch": self.epoch,
            "generator": self._generator.get_state(),
            "head": {n: t.detach().clone() for n, t in self.head.state_dict().items()},
            "velocities": {n: v.clone() for n, v in self.optimizer.velocities.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the ``state_dict`` of a trainer that was made with the same arguments."""
        self.epoch = int(state["epoch"])
        self._generator.set_state(state["generator"].cpu())
        self.head.load_state_dict(state["head"])
        for name, velocity in self.optimizer.velocities.items():
            velocity.copy_(state["velocities"][name])

    def _train(self, view: Tensor) -> list[float]:
        """Train for one pass; return mean loss, accuracy and confidence."""
        order, noise = self.draw_order()
        self.head.train()
        self.refinement.start_epoch(self.head, self.epoch, noise)
        totals = torch.zeros(3, dtype=torch.float64, device=self._device)
        for rows in order.split(self.batch_size):
            totals += self._step(view[rows], self.labels[rows], noise)
        return (totals / len(order)).tolist()

    @torch.no_grad()
    def _evaluate(self, features: Tensor, labels: Tensor) -> list[float]:
        """Return accuracy and mean confidence of the refinement's ``feedback_logits``."""
        self.head.eval()
        totals = torch.zeros(2, dtype=torch.float64, device=self._device)
        parts = features.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH)
        for block, targets in zip(*parts, strict=True):
            logits = self.refinement.feedback_logits(self.head, block.float())
            totals += hits_and_confidence(logits, targets)
        return (totals / len(labels)).tolist()

    def _step(self, features: Tensor, targets: Tensor, noise: Generator) -> Tensor:
        """Train one step; return the sums of loss, hits and confidence, (3,)."""
        self.optimizer.zero_grad()
        self.refinement.start_batch(self.head, noise)
        loss, logits = self.refinement.batch_loss(self.head, features.float(), targets, noise)
        loss.backward()
        self.optimizer.step(self.refinement.movable(self.head))
        hits, confidence = hits_and_confidence(logits.detach(), targets)
        return torch.stack([loss.detach() * len(targets), hits, confidence])

    def _draw_seed(self) -> int:
        return int(torch.randint(2**62, (), generator=self._generator))


def hits_and_confidence(logits: Tensor, targets: Tensor) -> Tensor:
    """Return counts of correct rows and sums of largest probabilities, (..., 2).

    The logits are (..., N, K), the targets (N,).
    """
    # A softmax over few classes costs three times as much as their logsumexp.
    largest, predictions = logits.max(dim=-1)
    confidences = (largest - logits.logsumexp(dim=-1)).exp()
    return torch.stack([(predictions == targets).sum(-1), confidences.sum(-1)], dim=-1)


def _check_views(views: Sequence[Tensor], labels: Tensor) -> None:
    if not views:
        raise ValueError("expected at least one view of features (N, D), got none")
    for position, view in enumerate(views):
        if view.ndim != 2 or len(view) != len(labels):
            raise ValueError(
                f"views[{position}]: expected shape ({len(labels)}, D), a row per label, "
                f"got {tuple(view.shape)}"
            )
