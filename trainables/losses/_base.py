"""What all losses share: shapes, ignored targets, precision and the hooks of the training loop."""

from abc import ABC, abstractmethod
from dataclasses import field

import torch
from torch import Tensor, nn

from trainables.common.fields import CheckedFields, choice
from trainables.common.logit_rows import full_precision, masked_classes
from trainables.losses._registry import LOSSES as LOSSES

VARIANTS = ("paper", "released")


class Loss(CheckedFields, nn.Module, ABC):
    """A training loss on logits.

    A subclass declares its arguments as fields and implements ``compute``. It never waits for the
    device inside a step: rows to ignore are masked, not selected.

    Args:
        ignore_index: Target value of rows that take no part.

    Raises:
        ValueError: If an argument is out of its range.
    """

    ignore_index: int = field(default=-100, kw_only=True)

    def __post_init__(self) -> None:
        nn.Module.__init__(self)
        super().__post_init__()

    def forward(self, logits: Tensor, targets: Tensor, indices: Tensor | None = None) -> Tensor:
        """Return the loss as a scalar in float32, or float64 for float64 logits.

        Args:
            logits: (N, K) or (N, K, H, W), any floating dtype.
            targets: Class indices, (N,) or (N, H, W), int64.
            indices: Position of each sample in the training set, (N,), for losses that keep a
                history; others ignore it.

        Raises:
            ValueError: If the shapes do not belong together.
        """
        rows, labels = flatten(logits, targets)
        valid = labels != self.ignore_index
        safe = labels * valid
        with torch.autocast(device_type=rows.device.type, enabled=False):
            return self.compute(full_precision(rows), safe, valid, indices)

    @abstractmethod
    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        """Return the scalar loss.

        Args:
            logits: (N, K), float32 or float64.
            targets: (N,), int64, every entry in [0, K).
            valid: (N,), bool, False for rows that must change neither value nor gradient.
            indices: See ``forward``.
        """

    def prepare(self, num_samples: int, num_classes: int) -> None:
        """Prepare for the training set before the first epoch, such as by allocating a history."""

    def start_epoch(self, epoch: int) -> None:
        """Prepare epoch ``epoch`` (from 0)."""

    def end_epoch(self) -> dict[str, float]:
        """Return figures of the epoch that are worth tracking."""
        return {}


class ReducedLoss(Loss):
    """A loss that is a mean (or sum) over the rows that count.

    Args:
        reduction: ``mean`` over the rows that count, or ``sum``.
    """

    reduction: str = choice(default="mean", choices=("mean", "sum"), kw_only=True)

    def reduce(self, values: Tensor, valid: Tensor) -> Tensor:
        """Reduce one value per row, (N,), over the rows that count, ``valid`` (N,)."""
        return (masked_sum if self.reduction == "sum" else masked_mean)(values, valid)


class MarginLoss(ReducedLoss):
    """A loss whose penalty spares rows; the share of spared rows is a figure of each epoch."""

    _spared: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts = False  # A loss that counts nothing waits for no device.
        self.register_buffer("_spared", torch.zeros(2, dtype=torch.int64), persistent=False)

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self._spared.zero_()

    def end_epoch(self) -> dict[str, float]:
        spared, rows = self._spared.tolist() if self._counts else (0, 0)
        return {"spared": spared / rows} if rows else {}

    def count(self, penalty: Tensor, valid: Tensor) -> None:
        """Count, in training, the rows that have no penalty, (N,), and all that are ``valid``."""
        if self.training:
            self._counts = True
            free = valid & (penalty.detach() == 0)
            self._spared = self._spared.to(valid.device)
            self._spared.add_(torch.stack((free.sum(), valid.sum())))


class RowLoss(ReducedLoss):
    """A reduced loss whose rows do not depend on each other; a subclass implements ``per_row``."""

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        return self.reduce(self.per_row(logits, targets), valid)

    @abstractmethod
    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return one value per row, (N,), from logits (N, K) and targets (N,)."""


def flatten(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Turn (N, K, ...) logits and (N, ...) targets into (M, K) and (M,)."""
    if logits.ndim < 2 or targets.shape != (logits.shape[0], *logits.shape[2:]):
        raise ValueError(
            f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} do not belong "
            "together: expected (N, K) with (N,), or (N, K, H, W) with (N, H, W)"
        )
    if logits.ndim == 2:
        return logits, targets
    return logits.movedim(1, -1).reshape(-1, logits.shape[1]), targets.reshape(-1)


def allowed_classes(logits: Tensor, apart: int = 0) -> tuple[Tensor, Tensor]:
    """Return which classes are masked, (N, K), and the factor for means that leave them out, (N,).

    Losses that add up the classes skip masked ones, see ``LogitScale``, and multiply a sum divided
    by K - ``apart`` by the factor: it is exactly 1 where no class is masked.
    """
    masked = masked_classes(logits.detach())
    allowed = ((~masked).sum(dim=1) - apart).clamp(min=1)
    return masked, max(logits.shape[1] - apart, 1) / allowed


def loss_aside(
    loss: Loss, logits: Tensor, targets: Tensor, indices: Tensor | None = None
) -> Tensor:
    """Return a loss, with gradient, of a batch that its history is not to count.

    Methods that judge a batch twice, under other targets or by another head, call the loss itself
    once and this for the rest, so that a history counts each sample once an epoch.
    """
    training = loss.training
    loss.eval()
    try:
        return loss(logits, targets, indices)
    finally:
        loss.train(training)


def masked_sum(values: Tensor, valid: Tensor) -> Tensor:
    """Sum ``values`` (N,) where ``valid`` (N,); gradients of the other rows are exactly 0."""
    return torch.where(valid, values, 0).sum()


def masked_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Average ``values`` (N,) where ``valid`` (N,); 0 if no row counts."""
    return masked_sum(values, valid) / valid.sum().clamp(min=1)
