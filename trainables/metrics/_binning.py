"""Sorting scores into bins and adding up each bin; all on (C, N) blocks, without loops.

Bins are half open, ``(a, b]``; the first one also holds its lower edge. So every score belongs to
exactly one bin, 0 and 1 included.
"""

from __future__ import annotations

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


def binned_error(scores: Tensor, hits: Tensor, edges: Tensor) -> Tensor:
    """Return ``sum_b n_b / N |hit rate of b - mean score of b|`` of each row, (C,)."""
    gaps = bin_sums(bin_index(scores, edges), scores - hits, edges.shape[-1] - 1)
    return gaps.abs().sum(dim=1) / scores.shape[1]


def _sorted(scores: Tensor) -> Tensor:
    if scores.device.type != "cpu":
        return scores.sort(dim=1).values
    # numpy sorts float64 several times faster than torch on a CPU, and needs no indices
    return torch.from_numpy(np.sort(scores.numpy(), axis=1))
