from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from trainables.common.devices import concrete
from trainables.refinements._base import Refinement

EVALUATION_BATCH = 8192


class MaskedSGD:
    """SGD with momentum and weight decay in which single weights can stand still.

    Without masks it takes the steps of ``torch.optim.SGD``. Zeroing a gradient is not enough to
    hold a weight: its velocity and the weight decay would still move it. Here weight and velocity
    are both kept and continue from there once the weight is released.
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
        """Move every weight, except those that are False in the mask of their parameter."""
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
        """Drop all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None


class HeadTrainer:
    """Trains a refinement's head on cached features, one epoch per call.

    The same arguments give the same weights, and so does a trainer that resumes from another's
    state: all random numbers come from one generator on the CPU, which seeds a generator on the
    device anew for every epoch.

    Args:
        refinement: What to train and how; its ``lr`` is used throughout.
        views: The training set's features, one (N, D) tensor for each augmented view; epoch e
            reads view e modulo their number.
        labels: (N,), int64.
        num_classes: K.
        batch_size: Samples per step; the last step of an epoch takes the rest.
        momentum: SGD momentum, 0.9 in the MaC-Cal paper.
        weight_decay: L2 penalty, 5e-4 in the MaC-Cal paper.
        seed: Decides initial weights, order and masks.
        device: Where to train; features elsewhere are moved there one view at a time.
        held_out: Features (M, D) and labels (M,), on the device, for a refinement that wants its
            feedback measured there.

    Raises:
        ValueError: If there is no view, a view and the labels differ in length, or held-out rows
            are wanted and missing.

    Attributes:
        head: The head, in eval mode between epochs.
        epoch: Number of epochs trained.
        optimizer: What moves the head.
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
            raise ValueError("held_out is missing: the refinement's feedback is measured there")
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
            ``train_loss`` (mean over the steps' samples), ``train_accuracy`` and
            ``train_confidence`` (fractions, of the outputs that were trained on), and what the
            refinement tracks. A loss that diverged is returned as it is (nan or inf).
        """
        view = self.view()
        means = self._train(view)
        second = self.refinement.second_pass
        feedback = self._evaluate(*self.feedback_rows(view)) if second else means[1:]
        return self.end_epoch(*means, *feedback)

    def feedback_rows(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and labels of a second pass: the epoch's view, or held-out rows."""
        held_out = self.held_out if self.refinement.held_out else None
        return held_out or (view, self.labels)

    def view(self) -> Tensor:
        """Return the features (N, D) that the present epoch reads, on the device."""
        return self._views[self.epoch % len(self._views)].to(self._device)

    def draw_order(self) -> tuple[Tensor, Generator]:
        """Draw an epoch's order of samples (N,) and the generator of its other random numbers."""
        order = torch.randperm(len(self.labels), generator=self._generator).to(self._device)
        return order, Generator(self._device).manual_seed(self._draw_seed())

    def end_epoch(
        self, loss: float, accuracy: float, confidence: float, *feedback: float
    ) -> dict[str, float]:
        """Give the refinement its feedback, accuracy and confidence; return the epoch's figures."""
        self.head.eval()
        figures = self.refinement.end_epoch(self.head, *feedback)
        self.epoch += 1
        means = {"train_loss": loss, "train_accuracy": accuracy, "train_confidence": confidence}
        return means | figures

    def state_dict(self) -> dict[str, Any]:
        """Return everything that ``load_state_dict`` needs: tensors and plain numbers only."""
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
        """Go through the training set once; return mean loss, accuracy and confidence."""
        order, noise = self.draw_order()
        self.head.train()
        self.refinement.start_epoch(self.head, self.epoch, noise)
        totals = torch.zeros(3, dtype=torch.float64, device=self._device)
        for rows in order.split(self.batch_size):
            totals += self._step(view[rows], self.labels[rows], noise)
        return (totals / len(order)).tolist()

    @torch.no_grad()
    def _evaluate(self, features: Tensor, labels: Tensor) -> list[float]:
        """Return accuracy and mean confidence of what the refinement wants measured."""
        self.head.eval()
        totals = torch.zeros(2, dtype=torch.float64, device=self._device)
        parts = features.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH)
        for some, targets in zip(*parts, strict=True):
            logits = self.refinement.feedback_logits(self.head, some.float())
            totals += hits_and_confidence(logits, targets)
        return (totals / len(labels)).tolist()

    def _step(self, features: Tensor, targets: Tensor, noise: Generator) -> Tensor:
        """Take one step; return the sums of loss, hits and confidence, (3,)."""
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
        raise ValueError("views is empty: at least one tensor of features (N, D) is needed")
    for position, view in enumerate(views):
        if view.ndim != 2 or len(view) != len(labels):
            raise ValueError(
                f"views[{position}] has the shape {tuple(view.shape)}; "
                f"expected ({len(labels)}, D), a row for each label"
            )
