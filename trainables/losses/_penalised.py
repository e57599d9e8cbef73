"""The base of batch-wise calibration losses: the mean of a row loss plus a weighted penalty."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import number
from trainables.losses._base import Loss, masked_mean


class PenalisedLoss(Loss):
    """A classification loss plus ``weight`` times a calibration penalty of the whole batch.

    A subclass implements ``penalty``; the classification loss is cross-entropy unless it overrides
    ``row_loss``. For logits (N, K, H, W), the penalty uses at most ``most_pixels`` pixels (None for
    all), drawn evenly over the batch with torch's global generator.

    Args:
        weight: Factor of the penalty, at least 0.
    """

    most_pixels: ClassVar[int | None] = None
    _of_pixels: ClassVar[bool] = False
    weight: float = number(low=0.0)

    def forward(self, logits: Tensor, targets: Tensor, indices: Tensor | None = None) -> Tensor:
        self._of_pixels = logits.ndim > 2  # type: ignore[misc]
        return super().forward(logits, targets, indices)

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        base = masked_mean(self.row_loss(logits, targets), valid)
        # The exponential of a log-softmax would round differently, but confidences that are equal
        # in the released codes must be equal here.
        probs = F.softmax(logits, dim=1)
        if self._of_pixels and self.most_pixels and len(logits) > self.most_pixels:
            some = _drawn(len(logits), self.most_pixels, logits.device)
            logits, probs, targets, valid = (v[some] for v in (logits, probs, targets, valid))
        return base + self.weight * self.penalty(logits, probs, targets, valid)

    def row_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the classification loss of each row, (N,): ``-log p_y``."""
        return F.cross_entropy(logits, targets, reduction="none")

    @abstractmethod
    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the penalty of the batch, a scalar.

        Args:
            logits: (N, K), float32 or float64.
            probs: (N, K), their softmax.
            targets: (N,), int64, every entry in [0, K).
            valid: (N,), bool, False for rows that must change neither value nor gradient.
        """


def _drawn(count: int, wanted: int, device: torch.device) -> Tensor:
    """Return ``wanted`` of ``count`` positions, one from each of ``wanted`` equal parts."""
    starts = torch.arange(wanted, device=device) + torch.rand(wanted, device=device)
    return (starts * (count / wanted)).long().clamp(max=count - 1)


def top_label(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest score of each row, (N,), and whether its class is the target, (N,).

    ``torch.max`` chooses among tied classes.
    """
    largest, predicted = scores.max(dim=1)
    return largest, predicted == targets


def positive_sqrt(value: Tensor) -> Tensor:
    """Return the square root where ``value`` is positive, else 0 with gradient 0."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1).sqrt(), 0)
