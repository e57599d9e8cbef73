"""Sums over all pairs of a Laplacian kernel on [0, 1], by sorting instead of an (N, N) matrix."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

KERNEL_WIDTH = 0.4
"""Width of the kernel of both MMCE forms; fixed in the paper and in all released code."""


def laplacian_gram(positions: Tensor, features: Tensor) -> Tensor:
    """Return ``features.T @ kernel @ features``, (D, D), differentiable once in both arguments.

    ``kernel[i, j]`` is ``exp(-|r_i - r_j| / 0.4)`` for positions r (N,) in [0, 1]. The features are
    (N, D). The sums take O(N log N) time and O(N) memory. A pair at the same position adds nothing
    to the gradient with respect to the positions, as with ``torch.abs``.
    """
    gram: Tensor = _LaplacianGram.apply(positions, features)
    return gram


class _LaplacianGram(torch.autograd.Function):
    """Defines the gradient, because autograd through a sort is one-sided at tied positions."""

    @staticmethod
    def forward(ctx: Any, positions: Tensor, features: Tensor) -> Tensor:
        smooth, signed = _kernel_sums(positions, features)
        ctx.save_for_backward(features, smooth, signed)
        return features.T @ smooth

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        features, smooth, signed = ctx.saved_tensors
        symmetric = grad + grad.T
        by_position = -(features * (signed @ symmetric)).sum(dim=1) / KERNEL_WIDTH
        return by_position, smooth @ symmetric


def _kernel_sums(positions: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``sum_j k_ij x_j`` and ``sum_j sign(r_i - r_j) k_ij x_j``, both (N, D)."""
    ordered, order = positions.sort()
    sorted_features = features.index_select(0, order)
    growth = torch.exp(ordered / KERNEL_WIDTH).unsqueeze(1)
    # Sums of the first 0, 1, ... N rows, (N + 1, D).
    rising, falling = (
        F.pad(values.cumsum(dim=0), (0, 0, 1, 0))
        for values in (sorted_features * growth, sorted_features / growth)
    )
    first = torch.searchsorted(ordered, positions)
    past = torch.searchsorted(ordered, positions, right=True)
    own = torch.exp(positions / KERNEL_WIDTH).unsqueeze(1)
    above = (falling[-1:] - falling.index_select(0, past)) * own
    smooth = rising.index_select(0, past) / own + above
    return smooth, rising.index_select(0, first) / own - above
