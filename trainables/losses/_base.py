"""What all losses share: shapes, ignored targets, precision and the hooks of the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from trainables.checks import check_choice

REDUCTIONS = ("mean", "sum")


class Loss(nn.Module, ABC):
    """A training loss on logits.

    A subclass checks its arguments in its constructor and implements ``compute``. It never waits
    for the device inside a step: rows to ignore are masked, not selected.

    Args:
        ignore_index: Target value of rows that take no part.
    """

    def __init__(self, *, ignore_index: int = -100) -> None:
        super().__init__()
        self.ignore_index = ignore_index

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
        safe = torch.where(valid, labels, 0)
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
        """Hear of the training set before the first epoch; losses with a history allot it here."""

    def start_epoch(self, epoch: int) -> None:
        """Hear that epoch ``epoch`` (from 0) begins."""


class ReducedLoss(Loss):
    """A loss that is a mean (or sum) over the rows that count.

    Args:
        reduction: ``mean`` over the rows that count, or ``sum``.
        ignore_index: Target value of rows that take no part.

    Raises:
        ValueError: If ``reduction`` is neither.
    """

    def __init__(self, *, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)

    def reduce(self, values: Tensor, valid: Tensor) -> Tensor:
        """Reduce one value a row, (N,), over the rows that count, ``valid`` (N,)."""
        if self.reduction == "sum":
            return masked_sum(values, valid)
        return masked_mean(values, valid)


class RowLoss(ReducedLoss):
    """A reduced loss whose rows do not depend on each other; a subclass implements ``per_row``."""

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        """Reduce ``per_row`` over the rows that count."""
        return self.reduce(self.per_row(logits, targets), valid)

    @abstractmethod
    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return one value a row, (N,), from logits (N, K) and targets (N,)."""


def flatten(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Turn (N, K, ...) logits and (N, ...) targets into (M, K) and (M,).

    Raises:
        ValueError: If the shapes do not belong together.
    """
    if logits.ndim < 2 or targets.shape != (logits.shape[0], *logits.shape[2:]):
        raise ValueError(
            f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} do not belong "
            "together: expected (N, K) with (N,), or (N, K, H, W) with (N, H, W)"
        )
    if logits.ndim == 2:
        return logits, targets
    return logits.movedim(1, -1).reshape(-1, logits.shape[1]), targets.reshape(-1)


def full_precision(values: Tensor) -> Tensor:
    """Return half-precision values as float32, others unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def masked_sum(values: Tensor, valid: Tensor) -> Tensor:
    """Sum ``values`` (N,) where ``valid`` (N,); gradients of the other rows are exactly 0."""
    return torch.where(valid, values, 0).sum()


def masked_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Average ``values`` (N,) where ``valid`` (N,); 0 if no row counts."""
    return masked_sum(values, valid) / valid.sum().clamp(min=1)
