"""Confidence scores, and the losses' common ways to get at them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SCORES = ("msp", "margin", "neg_entropy")
EPSILON = 1e-9


def confidence(probs: Tensor, score: str) -> Tensor:
    """Return the confidence of each row, (N,), larger for surer rows.

    Args:
        probs: (N, K), all positive.
        score: ``msp``, the largest probability, in (0, 1]; ``margin``, what separates it from the
            second, in [0, 1]; ``neg_entropy``, minus the entropy in nats, in [-log K, 0].
    """
    if score == "msp":
        return probs.max(dim=1).values
    if score == "margin":
        top = probs.topk(2, dim=1).values
        return top[:, 0] - top[:, 1]
    return (probs * probs.log()).sum(dim=1)


def selective_confidence(logits: Tensor, score: str, *, double_softmax: bool) -> Tensor:
    """Return the confidence from logits (N, K) as the released code of the aurc paper does.

    Probabilities are clamped to [1e-9, 1 - 1e-9]; with ``double_softmax`` another softmax (and
    clamp) is taken of them.
    """
    probs = _clamped_softmax(logits)
    if double_softmax:
        probs = _clamped_softmax(probs)
    return confidence(probs, score)


def _clamped_softmax(values: Tensor) -> Tensor:
    return F.softmax(values, dim=1).clamp(EPSILON, 1 - EPSILON)


def valid_order(keys: Tensor, valid: Tensor) -> Tensor:
    """Return the places (N,) that sort ``keys`` (N,), equal ones as they come, invalid ones last.

    Keys must be finite.
    """
    return torch.where(valid, keys, torch.inf).argsort(stable=True)


def positions(order: Tensor) -> Tensor:
    """Return the inverse of the permutation ``order`` (N,): from 0, where each row stands."""
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))


def row_count(valid: Tensor, configured: int | None, dtype: torch.dtype) -> Tensor:
    """Return the number of valid rows, or the configured one instead, as a scalar tensor."""
    rows = valid.sum().to(dtype)
    return rows if configured is None else torch.full_like(rows, configured)
