"""Base classes of losses: shapes, ignored targets, precision and hooks of the training loop."""

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

    A subclass declares its arguments as fields and implements ``compute``. It must not wait for the
    device in a step, so ignored rows are masked instead of removed.

    Args:
        ignore_index: Target value of ignored rows.

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
                history; other losses ignore it.

        Raises:
            ValueError: If the shapes do not fit together.
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
        """Prepare for the training set before the first epoch, for example allocate a history."""

    def start_epoch(self, epoch: int) -> None:
        """Prepare epoch ``epoch`` (from 0)."""

    def end_epoch(self) -> dict[str, float]:
        """Return metrics of the epoch to track."""
        return {}


class ReducedLoss(Loss):
    """A loss that is a mean (or sum) over the rows that are not ignored.

    Args:
        reduction: ``mean`` over the rows that are not ignored, or ``sum``.
    """

    reduction: str = choice(default="mean", choices=("mean", "sum"), kw_only=True)

    def reduce(self, values: Tensor, valid: Tensor) -> Tensor:
        """Return the mean or sum of one value per row, (N,), over the ``valid`` rows (N,)."""
        return (masked_sum if self.reduction == "sum" else masked_mean)(values, valid)


class MarginLoss(ReducedLoss):
    """A loss whose penalty may be 0; epochs report the share of counted rows without a penalty."""

    _spared: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts = False  # Unless ``count`` is used, avoid waiting for the device.
        self.register_buffer("_spared", torch.zeros(2, dtype=torch.int64), persistent=False)

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self._spared.zero_()

    def end_epoch(self) -> dict[str, float]:
        spared, rows = self._spared.tolist() if self._counts else (0, 0)
        return {"spared": spared / rows} if rows else {}

    def count(self, penalty: Tensor, valid: Tensor) -> None:
        """In training, count the valid rows, and those of them whose penalty is 0."""
        if self.training:
            self._counts = True
            free = valid & (penalty.detach() == 0)
            self._spared = self._spared.to(valid.device)
            self._spared.add_(torch.stack((free.sum(), valid.sum())))


class RowLoss(ReducedLoss):
    """A reduced loss of independent rows; a subclass implements ``per_row``."""

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
    """Return True for masked classes, (N, K), and a factor (N,) for means over the other classes.

    Losses that sum over classes skip masked ones, see ``masked_classes``. They divide the sum by
    ``K - apart`` and multiply it by the factor, which is exactly 1 if no class is masked. ``apart``
    is 1 if the mean leaves out one class that is never masked, such as the true class, else 0.
    """
    masked = masked_classes(logits.detach())
    allowed = ((~masked).sum(dim=1) - apart).clamp(min=1)
    return masked, max(logits.shape[1] - apart, 1) / allowed


def loss_aside(
    loss: Loss, logits: Tensor, targets: Tensor, indices: Tensor | None = None
) -> Tensor:
    """Return the loss of a batch, with gradient, without adding the batch to its history.

    Methods that use a batch twice, with other targets or another head, call the loss itself once
    and this function otherwise, so that a history counts each sample once per epoch.
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
    """Average ``values`` (N,) where ``valid`` (N,); 0 if no row is valid."""
    return masked_sum(values, valid) / valid.sum().clamp(min=1)
