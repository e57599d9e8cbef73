"""Sorting scores into bins, and the errors that follow; all on (C, N) blocks, without loops.

Bins are half open, ``(a, b]``; the first one also holds its lower edge. So every score belongs to
exactly one bin, 0 and 1 included.
"""

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


def width_edges(bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the edges ``0, 1/bins, ..., 1``, (bins + 1,), float64, each rounded to ``dtype``."""
    steps = torch.arange(bins + 1, dtype=torch.float64, device=device)
    return (steps / bins).to(dtype).double()


def mass_edges(scores: Tensor, bins: int) -> Tensor:
    """Return edges between which lie equally many scores, (C, bins + 1).

    Edge j is the sorted row read at position ``j N / bins``, linear between neighbours and constant
    after the last. Ends are the smallest and the largest score. These are the edges of the adaptive
    ECE that papers report (torrvision/focal_calibration).

    Args:
        scores: (C, N), one row to be cut into bins each.
        bins: Number of bins.
    """
    ordered = _sorted(scores)
    last = scores.shape[1] - 1
    position = torch.arange(bins + 1, dtype=torch.float64, device=scores.device)
    position = position * scores.shape[1] / bins
    below = position.floor().clamp(max=last).long()
    above = (below + 1).clamp(max=last)
    low, high = ordered[:, below], ordered[:, above]
    return low + (position - below).clamp(max=1) * (high - low)


def bin_index(scores: Tensor, edges: Tensor) -> Tensor:
    """Return the bin, in [0, bins), of each score.

    Args:
        scores: (C, N).
        edges: (bins + 1,) for all rows, or (C, bins + 1). Where edges coincide, a score on them
            goes to the first of the bins that end there, together with all its equals.
    """
    return torch.searchsorted(edges[..., 1:-1].contiguous(), scores)


def bin_sums(index: Tensor, weights: Tensor, bins: int) -> Tensor:
    """Add up ``weights`` (C, N) by bin: (C, bins), float64."""
    rows = torch.arange(index.shape[0], device=index.device)[:, None]
    sums = torch.zeros(index.shape[0] * bins, dtype=torch.float64, device=index.device)
    sums.scatter_add_(0, (index + rows * bins).flatten(), weights.flatten())
    return sums.view(-1, bins)


class Binned:
    """Scores in bins, beside how often what they predict came true: all binned errors are here.

    Args:
        scores: (C, N), float64, one row of scores to be binned each.
        hits: (C, N), 1.0 where what the score predicts came true, else 0.0.
        edges: (bins + 1,) for all rows, or (C, bins + 1).
    """

    def __init__(self, scores: Tensor, hits: Tensor, edges: Tensor) -> None:
        self._scores, self._hits = scores, hits
        self._index = bin_index(scores, edges)
        self._bins = edges.shape[-1] - 1

    @cached_property
    def counts(self) -> Tensor:
        """Scores in each bin, (C, bins)."""
        return self._sums(torch.ones_like(self._scores))

    @cached_property
    def scores(self) -> Tensor:
        """Sum of the scores of each bin, (C, bins)."""
        return self._sums(self._scores)

    @cached_property
    def hits(self) -> Tensor:
        """Number of hits in each bin, (C, bins)."""
        return self._sums(self._hits)

    @cached_property
    def gaps(self) -> Tensor:
        """``n_b (mean score - hit rate)`` of each bin b of n_b scores, (C, bins)."""
        return self._sums(self._scores - self._hits)

    def error(self) -> Tensor:
        """Return ``sum_b n_b / N |hit rate - mean score|`` of each row, (C,): ECE and its like."""
        return self.gaps.abs().sum(dim=1) / self._scores.shape[1]

    def excess(self) -> Tensor:
        """Return the part of the error, (C,), from bins whose mean score exceeds the hit rate."""
        return self.gaps.clamp(min=0).sum(dim=1) / self._scores.shape[1]

    def largest_gap(self) -> Tensor:
        """Return ``max_b |hit rate - mean score|`` of each row, (C,): MCE."""
        return self._mean_gaps.amax(dim=1)

    def debiased_error(self) -> Tensor:
        """Return the error of each row, (C,), without what of it is expected by chance.

        Kumar, Liang and Ma (2019, section 5 and appendix): were the hit rate of a bin drawn anew,
        from a normal distribution around the one seen, the error would be higher by some amount;
        that amount is subtracted. The mean absolute value of a normal variable has a closed form,
        so nothing is drawn.
        """
        debiased = self._mean_gaps - self._chance
        return (self.counts * debiased).sum(dim=1) / self._scores.shape[1]

    def error_terms(self) -> Tensor:
        """Return what each score adds to ``error``, (C, N), with mean ``error`` in each row."""
        return (self._scores - self._hits) * self.gaps.sign().gather(1, self._index)

    def largest_gap_terms(self) -> Tensor:
        """Return what each score adds to ``largest_gap``, (C, N): 0 outside of its bin."""
        largest = self._mean_gaps.argmax(dim=1, keepdim=True)
        weight = self._scores.shape[1] / self.counts.gather(1, largest).clamp(min=1)
        return self.error_terms() * (self._index == largest) * weight

    def debiased_terms(self) -> Tensor:
        """Return what each score adds to ``debiased_error``, (C, N): its share of the bin's."""
        return self.error_terms() - self._chance.gather(1, self._index)

    @cached_property
    def _mean_gaps(self) -> Tensor:
        return self.gaps.abs() / self.counts.clamp(min=1)

    @cached_property
    def _chance(self) -> Tensor:
        """What of each bin's mean gap is expected by chance, (C, bins)."""
        return chance_gaps(self._mean_gaps, self.counts, self.hits)

    def _sums(self, weights: Tensor) -> Tensor:
        return bin_sums(self._index, weights, self._bins)


def chance_gaps(mean_gaps: Tensor, counts: Tensor, hits: Tensor) -> Tensor:
    """Return what of the mean gap of bins is expected by chance; all of one shape."""
    filled = counts.clamp(min=1)
    rate = hits / filled
    deviation = (rate * (1 - rate) / filled).clamp(min=0).sqrt()
    return _mean_absolute(mean_gaps, deviation) - mean_gaps


def _mean_absolute(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the mean absolute value of normal variables."""
    ratio = torch.where(deviation > 0, mean / deviation.clamp(min=1e-300), torch.inf)
    spread = math.sqrt(2 / math.pi) * deviation * torch.exp(-ratio.square() / 2)
    return spread + mean * torch.erf(ratio / math.sqrt(2))


def _sorted(scores: Tensor) -> Tensor:
    if scores.device.type != "cpu":
        return scores.sort(dim=1).values
    # numpy sorts float64 several times faster than torch on a CPU, and needs no indices
    return torch.from_numpy(np.sort(scores.numpy(), axis=1))
