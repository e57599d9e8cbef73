"""Losses that depend on the history of each training sample."""

from dataclasses import field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainables.losses._base import MarginLoss
from trainables.losses._confidence import positions


class RankedPairs(NamedTuple):
    """Pairs of each of the S samples of a batch with the next one (the last with the first).

    Attributes:
        sign: 1, -1 or 0 if the sample was right more often, less often, or equally often, (S,).
        violation: How much the difference of the two confidences falls short of the difference of
            the shares of epochs in which the two samples were right; 0 where ``sign`` is 0, (S,).
        valid: False for samples with only ignored rows, which are in no pair, (S,).
    """

    sign: Tensor
    violation: Tensor
    valid: Tensor


class CorrectnessHistory(nn.Module):
    """Counts the epochs in which each training sample was classified correctly."""

    counts: Tensor
    epoch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))

    def compare(self, confidences: Tensor, valid: Tensor, indices: Tensor) -> RankedPairs:
        """Pair each sample with the next one, and rank pairs by the history before this batch.

        All tensors are (S,): confidences, whether a sample is valid, and positions in the training
        set.
        """
        following = next_valid(valid)
        shares = self._shares(indices)
        gaps = shares - shares.gather(0, following)
        sign = gaps.sign().to(confidences.dtype)
        # The released code computes margins in single precision for any logits.
        margin = gaps.abs().float().to(confidences.dtype)
        other = confidences.gather(0, following) + margin * sign
        return RankedPairs(sign, (-sign * (confidences - other)).clamp(min=0), valid)

    def _shares(self, indices: Tensor) -> Tensor:
        # The largest count is taken as 1 in the first two epochs, then as the number of past
        # epochs. The smallest is the present minimum over the training set.
        low = self.counts.min()
        span = self.epoch.clamp(min=1) - low
        shares = (self.counts.gather(0, indices) - low) / span
        # A span of 0 (all samples were always right) would give 0/0, so nothing is ranked then.
        # The upper limit only matters if a sample is counted more than once per epoch.
        return torch.where(span > 0, shares, 0.0).clamp(0.0, 1.0)


class RankingLoss(MarginLoss):
    """A loss that can compare confidences with the training samples' history."""

    ranked: bool = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.history = CorrectnessHistory()

    def prepare(self, num_samples: int, num_classes: int) -> None:
        """Allocate a count for each training sample."""
        if self.ranked:
            self.history.counts = self.history.counts.new_zeros(num_samples)

    def start_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` (from 0), by which the history normalises its counts."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch!r} is outside [0, inf)")
        super().start_epoch(epoch)
        self.history.epoch.fill_(epoch)

    def rank(
        self, confidences: Tensor, right: Tensor, valid: Tensor, indices: Tensor | None
    ) -> RankedPairs:
        """Return the pairs of a batch; in training mode, add the batch to the history.

        Rows of one sample (pixels of an image) are averaged, and pairs are of samples.

        Args:
            confidences: (N,), of each row.
            right: (N,), bool, whether the row is classified correctly.
            valid: (N,), bool.
            indices: (S,), positions in the training set, where S divides N.

        Raises:
            ValueError: If indices are missing or do not fit, or ``prepare`` was not called.
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
    """Return ``indices`` (S,) after checks; move them and the loss to the device of ``valid``.

    ``kept`` is the loss's history, empty before ``prepare``. For errors see ``RankingLoss.rank``.
    """
    if indices is None:
        raise ValueError("indices=None: the loss needs each sample's position in the training set")
    if not len(kept):
        raise ValueError("prepare(num_samples, num_classes) must come before the first batch")
    if indices.ndim != 1 or not len(indices) or len(valid) % len(indices):
        raise ValueError(f"indices {tuple(indices.shape)} do not fit {len(valid)} rows")
    if kept.device != valid.device:
        loss.to(valid.device)
    return indices.to(valid.device, non_blocking=True)


def sample_means(values: Tensor, rows: Tensor) -> Tensor:
    """Return the means of ``values`` (N,) over each sample's valid rows, (S,), or 0 without any.

    ``rows`` (S, N/S) is the mask of valid rows.
    """
    total = torch.where(rows, values.view(rows.shape), 0).sum(dim=1)
    return total / rows.sum(dim=1).clamp(min=1)


def next_valid(valid: Tensor) -> Tensor:
    """Return the next valid position of each valid position (S,); the first follows the last."""
    order = valid.logical_not().to(torch.int8).argsort(stable=True)
    place = positions(order) + 1
    return order.gather(0, torch.where(place < valid.sum(), place, 0))
