"""Sums over all pairs of a Laplacian kernel on [0, 1], by sorting instead of an (N, N) matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

KERNEL_WIDTH = 0.4
"""Width of the kernel of both MMCE forms; fixed in the paper and in all released code."""


def laplacian_gram(positions: Tensor, features: Tensor, width: float = KERNEL_WIDTH) -> Tensor:
    """Return ``features.T @ kernel @ features`` for ``kernel[i, j] = exp(-|r_i - r_j| / width)``.

    Takes O(N log N) time and O(N) memory. A pair at the same position adds nothing to the gradient
    with respect to the positions, as with ``torch.abs``.

    Args:
        positions: r, (N,), in [0, 1]; the intermediate powers stay below exp(1 / width).
        features: (N, D).
        width: Width of the kernel, well above 1/80 for float32.

    Returns:
        (D, D), differentiable once in both arguments.
    """
    gram: Tensor = _LaplacianGram.apply(positions, features, width)
    return gram


class _LaplacianGram(torch.autograd.Function):
    """The gradient is written out because sorting would give tied positions a one-sided one."""

    @staticmethod
    def forward(ctx: Any, positions: Tensor, features: Tensor, width: float) -> Tensor:
        smooth, signed = _kernel_sums(positions, features, width)
        ctx.save_for_backward(features, smooth, signed)
        ctx.width = width
        return features.T @ smooth

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        features, smooth, signed = ctx.saved_tensors
        symmetric = grad + grad.T
        by_position = -(features * (signed @ symmetric)).sum(dim=1) / ctx.width
        return by_position, smooth @ symmetric, None


def _kernel_sums(positions: Tensor, features: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Return ``sum_j k_ij x_j`` and ``sum_j sign(r_i - r_j) k_ij x_j``, both (N, D)."""
    ordered, order = positions.sort()
    sorted_features = features.index_select(0, order)
    growth = torch.exp(ordered / width).unsqueeze(1)
    rising = _running_sum(sorted_features * growth)
    falling = _running_sum(sorted_features / growth)
    first = torch.searchsorted(ordered, positions)
    past = torch.searchsorted(ordered, positions, right=True)
    own = torch.exp(positions / width).unsqueeze(1)
    above = (falling[-1:] - falling.index_select(0, past)) * own
    smooth = rising.index_select(0, past) / own + above
    return smooth, rising.index_select(0, first) / own - above


def _running_sum(values: Tensor) -> Tensor:
    """Return the sums of the first 0, 1, ... N rows of (N, D), as (N + 1, D)."""
    return torch.nn.functional.pad(values.cumsum(dim=0), (0, 0, 1, 0))
