"""Calibration by pairwise constraints."""

from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trainables.common.fields import number
from trainables.losses._base import LOSSES, Loss, masked_mean

# Number of classes per block. One logarithm is taken of a product with one factor in [1, 2] per
# class, and the product must stay below the largest float32.
_BLOCK = 32
# Number of elements of a temporary tensor, on a CPU (few, to fit its cache) and on a GPU.
_CACHED = 1 << 20
_LAUNCHED = 1 << 25


def split_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logit of each row's target, (N, 1), and those of the other classes, (N, K - 1)."""
    own = targets.unsqueeze(1)
    position = torch.arange(logits.shape[1] - 1, device=logits.device)
    return logits.gather(1, own), logits.gather(1, position + (position >= own).long())


def binary_exclusion(others: Tensor) -> Tensor:
    """Return half the sum of ``softplus(z_k - z_j)`` of each row z (N, K - 1), normalised, (N,).

    The sum is over all ordered pairs of the K - 1 non-target classes, including a class with
    itself, and is divided by (K - 1)(K - 2), as in the released code. For K = 2 there are no pairs,
    and the result is 0. Takes O(N K^2) time and O(N K) memory, on a GPU up to 300 MB more.
    """
    count = others.shape[1]
    if count < 2:
        return others.sum(dim=1) * 0
    total: Tensor = _PairwiseSoftplus.apply(others)
    return 0.5 * total / (count * (count - 1))


class _PairwiseSoftplus(torch.autograd.Function):
    """Sums ``softplus(z_k - z_j)`` over all ordered pairs (j, k) of each row of (N, M)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        on_cpu = values.device.type == "cpu"
        total, slope = (pairs_in_blocks if on_cpu else pairs_at_once)(values)
        ctx.save_for_backward(slope)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grad.unsqueeze(1) * slope


def pairs_at_once(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pair sums (N,) and their derivative (N, M), computed for each pair.

    For a GPU, where launches cost more than exponentials.
    """
    rows = max(1, _LAUNCHED // values.shape[1] ** 2)
    totals, slopes = [], []
    for part in values.split(rows):
        distance = part.unsqueeze(2) - part.unsqueeze(1)
        totals.append(-F.logsigmoid(distance).sum(dim=(1, 2)))
        slopes.append(distance.sigmoid_().sum(dim=2))
    return torch.cat(totals), torch.cat(slopes).mul_(2).sub_(values.shape[1])


def pairs_in_blocks(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same as ``pairs_at_once``, with one logarithm and few exponentials per block."""
    ordered, order = values.sort(dim=1, descending=True)
    total, slope = torch.zeros_like(ordered[:, 0]), torch.zeros_like(ordered)
    rows = max(1, _CACHED // (min(_BLOCK, values.shape[1]) * values.shape[1]))
    parts = zip(ordered.split(rows), total.split(rows), slope.split(rows), strict=True)
    for (block, totals, slopes), start in product(parts, range(0, values.shape[1], _BLOCK)):
        head, tail = block[:, start : start + _BLOCK], block[:, start + _BLOCK :]
        _add_inner_pairs(head, totals, slopes[:, start : start + _BLOCK])
        if tail.shape[1]:
            _add_cross_pairs(head, tail, totals, slopes[:, start:])
    return total, torch.zeros_like(slope).scatter(1, order, slope)


def _add_inner_pairs(head: Tensor, total: Tensor, slope: Tensor) -> None:
    """Add the sums over ordered pairs within ``head`` (N, B), whose rows are in descending order.

    softplus(d) + softplus(-d) = |d| + 2 log(1 + e^-|d|), with derivative tanh(d / 2).
    """
    distance = (head.unsqueeze(2) - head.unsqueeze(1)).abs()
    total += distance.sum(dim=(1, 2)) / 2
    factor = distance.neg_().exp_().add_(1)
    total += factor.prod(dim=1).log().sum(dim=1)
    sign = torch.ones_like(factor[0]).triu(1)
    sign = sign - sign.T
    slope += 2 * (sign / factor).sum(dim=2) - sign.sum(dim=1)


def _add_cross_pairs(head: Tensor, tail: Tensor, total: Tensor, slope: Tensor) -> None:
    """Add the sums over pairs of ``head`` (N, B) and ``tail`` (N, T), which has no larger entries.

    A pair's exponential is the product of two factors of at most 1, relative to the smallest entry
    of ``head``, so that no pair needs its own exponential.
    """
    pivot = head[:, -1:]
    above, below = head - pivot, pivot - tail
    factor = torch.exp(-above).unsqueeze(2) * torch.exp(-below).unsqueeze(1)
    factor += 1
    distances = tail.shape[1] * above.sum(dim=1) + head.shape[1] * below.sum(dim=1)
    total += distances + 2 * factor.prod(dim=1).log().sum(dim=1)
    inverse = factor.reciprocal_()
    slope[:, : head.shape[1]] += 2 * inverse.sum(dim=2) - tail.shape[1]
    slope[:, head.shape[1] :] -= 2 * inverse.sum(dim=1) - head.shape[1]


@LOSSES.register("cpc")
class CPCLoss(Loss):
    """Cross-entropy plus two penalties on pairs of classes, as logistic losses of their logits.

    Binary discrimination raises the true class above each other class; binary exclusion pulls the
    other classes together. The value includes a constant, 0.5 log 2 / (K - 2) times ``weight_be``,
    from pairs of a class with itself, as in the released code; it has no gradient. For two classes
    the binary exclusion is 0. The time grows with the square of the number of classes, so this loss
    is not for many thousands of classes. It is not for masked classes either: their pairs dominate
    the value, and are infinite for -inf.

    Source: Cheng and Vasconcelos, Calibrating Deep Neural Networks by Pairwise Constraints, CVPR
    2022; normalisation as in the code released with BalCAL.

    Args:
        weight_1v1: Factor of the binary discrimination, at least 0.
        weight_be: Factor of the binary exclusion, at least 0.

    Raises:
        ValueError: When called with one class only.
    """

    weight_1v1: float = number(default=0.1, low=0.0)
    weight_be: float = number(default=1.0, low=0.0)

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        """Return cross-entropy plus the two weighted penalties, averaged over the valid rows."""
        if logits.shape[1] < 2:
            raise ValueError(f"expected at least 2 classes, got K={logits.shape[1]}")
        rows = F.cross_entropy(logits, targets, reduction="none")
        own, others = split_logits(logits, targets)
        rows = rows + self.weight_1v1 * -F.logsigmoid(own - others).mean(dim=1)
        rows = rows + self.weight_be * binary_exclusion(others)
        return masked_mean(rows, valid)
