"""Confidence scores, and functions that several losses use with them."""

import torch
from torch import Tensor
from torch.nn import functional as F

SCORES = ("msp", "margin", "neg_entropy")
EPSILON = 1e-9


def confidence(probs: Tensor, score: str, limits: tuple[float, float]) -> Tensor:
    """Return the confidence of each row, (N,).

    Args:
        probs: (N, K).
        score: ``msp``, the largest probability, in [0, 1]; ``margin``, the largest minus the second
            largest probability, in [0, 1]; ``neg_entropy``, minus the entropy in nats, in
            [-log K, 0].
        limits: Probabilities are clamped to this range; the lower limit is above 0.
    """
    # Clamping keeps the order, so the first two scores clamp only the values that they use.
    if score == "msp":
        return probs.max(dim=1).values.clamp(*limits)
    if score == "margin":
        first, second = probs.topk(2, dim=1).values.clamp(*limits).unbind(dim=1)
        return first - second
    probs = probs.clamp(*limits)
    return (probs * probs.log()).sum(dim=1)


def selective_confidence(logits: Tensor, score: str, *, double_softmax: bool) -> Tensor:
    """Return the confidence from logits (N, K) as in the released code of the aurc paper.

    Probabilities are clamped to [1e-9, 1 - 1e-9]; ``double_softmax`` applies another softmax (and
    clamp) to them.
    """
    limits = EPSILON, 1 - EPSILON
    probs = F.softmax(logits, dim=1)
    if double_softmax:
        probs = F.softmax(probs.clamp(*limits), dim=1)
    return confidence(probs, score, limits)


def valid_order(keys: Tensor, valid: Tensor) -> Tensor:
    """Return the order (N,) that sorts ``keys`` (N,), all finite, with invalid ones last.

    Equal keys are in the order of ``torch.sort``, which is not that of the rows: a stable sort
    would rank equal confidences in another order than the released code.
    """
    return torch.where(valid, keys, torch.inf).argsort()


def positions(order: Tensor) -> Tensor:
    """Return the position (N,) of each row in ``order`` (N,), which is the inverse permutation."""
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))


def row_count(valid: Tensor, configured: int | None, dtype: torch.dtype) -> Tensor:
    """Return the configured number of rows or else the number of valid ones, as a scalar."""
    rows = valid.sum(dtype=dtype)
    return rows if configured is None else torch.full_like(rows, configured)


def predicted_prob(logits: Tensor) -> Tensor:
    """Return the largest probability of each row, (N,)."""
    return (logits.amax(dim=1) - logits.logsumexp(dim=1)).exp()
