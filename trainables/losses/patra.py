from dataclasses import field

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import count, number
from trainables.losses._base import LOSSES, masked_mean
from trainables.losses._history import sample_means, sample_places
from trainables.losses._penalised import PenalisedLoss, top_label
from trainables.losses.fl import FocalLoss


@LOSSES.register("patra")
class PrunedHuberLoss(PenalisedLoss):
    """Focal loss plus a Huber penalty of mean confidence minus accuracy; prunes training data.

    The penalty of a batch with mean confidence C and accuracy A is the Huber loss of C - A, a
    square up to ``threshold`` and linear beyond; A is a constant for the gradient. Every ``every``
    epochs, the share ``pruned`` of the remaining training samples is removed permanently: those
    with the lowest average confidence. The average is ``momentum`` times the new confidence plus
    ``1 - momentum`` times the old average.

    Pruned samples stay in the batches and affect batch statistics, but neither the loss nor its
    gradient, so no time is saved. In training mode a call also stores the batch; ``indices`` and
    pixels are as for ``crl``.

    Source: Patra et al., Calibrating Deep Neural Networks using Explicit Regularisation and Dynamic
    Data Pruning, WACV 2023. No code was released. The abstract names penalty and pruning without
    numbers: the defaults are ours.

    Not for data with important hard samples, such as rare classes, which are pruned first.

    Args:
        weight: Factor of the penalty, at least 0.
        gamma: Focusing parameter of the focal loss, at least 0; 0 is cross-entropy.
        threshold: Where the penalty becomes linear, above 0.
        pruned: Share of the remaining samples that is pruned each time, in [0, 1).
        momentum: Weight of the newest confidence, in (0, 1].
        every: Epochs between two prunings.

    Raises:
        ValueError: When called without ``prepare`` or ``indices``.
    """

    weight: float = number(default=1.0, low=0.0)
    gamma: float = number(default=1.0, low=0.0)
    threshold: float = number(default=0.005, low=0.0, open_low=True)
    pruned: float = number(default=0.1, low=0.0, high=1.0, open_high=True)
    momentum: float = number(default=0.3, low=0.0, high=1.0, open_low=True)
    every: int = count(default=20)
    average: Tensor = field(init=False)
    kept: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rows = FocalLoss(gamma=self.gamma)
        self.register_buffer("average", torch.zeros(0))
        self.register_buffer("kept", torch.zeros(0, dtype=torch.bool))

    def prepare(self, num_samples: int, num_classes: int) -> None:
        """Allocate a confidence for each training sample, and keep all samples."""
        self.average = self.average.new_zeros(num_samples)
        self.kept = self.kept.new_ones(num_samples)

    def start_epoch(self, epoch: int) -> None:
        """Prune if it is due at the start of epoch ``epoch`` (from 0)."""
        if epoch and epoch % self.every == 0:
            count = int(self.pruned * int(self.kept.sum()))
            self.kept[self.average.where(self.kept, torch.inf).argsort()[:count]] = False

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        """Return the focal loss plus the weighted penalty, over the rows of kept samples."""
        places = sample_places(self, self.average, valid, indices)
        if self.training:
            self._note(logits.detach(), valid, places)
        kept = self.kept.gather(0, places).repeat_interleave(len(valid) // len(places))
        return super().compute(logits, targets, valid & kept, indices)

    def row_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.rows.per_row(logits, targets)

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the Huber loss of mean confidence minus accuracy."""
        confidence, correct = top_label(probs, targets)
        gap = masked_mean(confidence - correct.to(confidence.dtype), valid)
        return F.huber_loss(gap, torch.zeros_like(gap), delta=self.threshold)

    @torch.no_grad()
    def _note(self, logits: Tensor, valid: Tensor, places: Tensor) -> None:
        confidence = F.softmax(logits, dim=1).amax(dim=1).to(self.average.dtype)
        newest = sample_means(confidence, valid.view(len(places), -1))
        old = self.average.gather(0, places)
        self.average.index_copy_(0, places, old.lerp(newest, self.momentum))
