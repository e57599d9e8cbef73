"""What losses keep of each training sample: what they do with a batch depends on its past."""

from dataclasses import field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainables.losses._base import MarginLoss
from trainables.losses._confidence import positions


class RankedPairs(NamedTuple):
    """Each sample of a batch and the one that follows it, the last with the first; all (S,).

    Attributes:
        sign: 1, -1 or 0: whether the sample was right more often, less often, or as often.
        violation: By how much the difference of confidences falls short of that of the shares of
            epochs in which they were right.
        valid: False for samples without a row that counts, which are in no pair.
    """

    sign: Tensor
    violation: Tensor
    valid: Tensor


class CorrectnessHistory(nn.Module):
    """Counts for each training sample the epochs in which it was classified rightly."""

    counts: Tensor
    epoch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))

    def compare(self, confidences: Tensor, valid: Tensor, indices: Tensor) -> RankedPairs:
        """Return the pairs of a batch, ranked by what happened before it; all are (S,)."""
        following = next_valid(valid)
        shares = self._shares(indices)
        gaps = shares - shares.gather(0, following)
        sign = gaps.sign().to(confidences.dtype)
        # Margins have single precision in the released code, whatever the logits have.
        margin = gaps.abs().float().to(confidences.dtype)
        other = confidences.gather(0, following) + margin * sign
        return RankedPairs(sign, (-sign * (confidences - other)).clamp(min=0), valid)

    def _shares(self, indices: Tensor) -> Tensor:
        # The maximum is 1 in the first two epochs and the number of epochs behind after that; the
        # minimum is of the whole training set at this moment.
        low = self.counts.min()
        span = self.epoch.clamp(min=1) - low
        shares = (self.counts.gather(0, indices) - low) / span
        # Without a span (all samples right every time) nothing is ranked, where 0/0 would be NaN.
        # The upper limit matters only if a sample is met more than once an epoch, as in mixup.
        return torch.where(span > 0, shares, 0.0).clamp(0.0, 1.0)


class RankingLoss(MarginLoss):
    """A loss that may compare confidences with the history of the training samples."""

    ranked: bool = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.history = CorrectnessHistory()

    def prepare(self, num_samples: int, num_classes: int) -> None:
        """Allot a count for each of ``num_samples`` training samples."""
        if self.ranked:
            self.history.counts = self.history.counts.new_zeros(num_samples)

    def start_epoch(self, epoch: int) -> None:
        """Note that epoch ``epoch`` (from 0) begins: the largest count follows from it."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch!r} is outside [0, inf)")
        super().start_epoch(epoch)
        self.history.epoch.fill_(epoch)

    def rank(
        self, confidences: Tensor, right: Tensor, valid: Tensor, indices: Tensor | None
    ) -> RankedPairs:
        """Return the pairs of a batch; in training mode, count the batch afterwards.

        Rows of one sample (pixels of an image) are averaged: pairs are of samples.

        Args:
            confidences: (N,), of each row.
            right: (N,), bool, whether the row is classified rightly.
            valid: (N,), bool.
            indices: (S,), places in the training set, where S divides N.

        Raises:
            ValueError: If there are no indices, they do not fit, or ``prepare`` was not called.
        """
        places = sample_places(self, self.history.counts, valid, indices)
        rows = valid.view(len(places), -1)
        valid_samples = rows.any(dim=1)
        pairs = self.history.compare(sample_means(confidences, rows), valid_samples, places)
        if self.training:
            counts, shares = self.history.counts, sample_means(right.to(confidences.dtype), rows)
            counts.index_add_(0, places, shares.to(counts.dtype))
        return pairs


def sample_places(loss: nn.Module, kept: Tensor, valid: Tensor, indices: Tensor | None) -> Tensor:
    """Return the places (S,) of a batch's samples, on its device, to which the loss follows.

    What it keeps of each training sample tells whether it is prepared; see ``RankingLoss.rank``.
    """
    if indices is None:
        raise ValueError("indices=None: the loss needs each sample's place in the training set")
    if not len(kept):
        raise ValueError("prepare(num_samples, num_classes) must come before the first batch")
    if indices.ndim != 1 or not len(indices) or len(valid) % len(indices):
        raise ValueError(f"indices {tuple(indices.shape)} do not belong to {len(valid)} rows")
    if kept.device != valid.device:
        loss.to(valid.device)
    return indices.to(valid.device, non_blocking=True)


def sample_means(values: Tensor, rows: Tensor) -> Tensor:
    """Average ``values`` (N,) over the valid rows of each sample; ``rows`` (S, N/S) is the mask."""
    total = torch.where(rows, values.view(rows.shape), 0).sum(dim=1)
    return total / rows.sum(dim=1).clamp(min=1)


def next_valid(valid: Tensor) -> Tensor:
    """Return for each valid place (S,) the next valid one, for the last the first."""
    order = valid.logical_not().to(torch.int8).argsort(stable=True)
    place = positions(order) + 1
    return order.gather(0, torch.where(place < valid.sum(), place, 0))
