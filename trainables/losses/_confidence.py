"""Confidence scores, and the losses' common ways to get at them."""

import torch
from torch import Tensor
from torch.nn import functional as F

SCORES = ("msp", "margin", "neg_entropy")
EPSILON = 1e-9


def confidence(probs: Tensor, score: str, limits: tuple[float, float]) -> Tensor:
    """Return the confidence of each row, (N,), larger for surer rows.

    Args:
        probs: (N, K).
        score: ``msp``, the largest probability, in [0, 1]; ``margin``, what separates it from the
            second, in [0, 1]; ``neg_entropy``, minus the entropy in nats, in [-log K, 0].
        limits: What probabilities are clamped to, the lower one above 0.
    """
    # Clamping keeps the order, so that the first two scores clamp only what they use.
    if score == "msp":
        return probs.max(dim=1).values.clamp(*limits)
    if score == "margin":
        first, second = probs.topk(2, dim=1).values.clamp(*limits).unbind(dim=1)
        return first - second
    probs = probs.clamp(*limits)
    return (probs * probs.log()).sum(dim=1)


def selective_confidence(logits: Tensor, score: str, *, double_softmax: bool) -> Tensor:
    """Return the confidence from logits (N, K) as the released code of the aurc paper does.

    Probabilities are clamped to [1e-9, 1 - 1e-9]; with ``double_softmax`` another softmax (and
    clamp) is taken of them.
    """
    limits = EPSILON, 1 - EPSILON
    probs = F.softmax(logits, dim=1)
    if double_softmax:
        probs = F.softmax(probs.clamp(*limits), dim=1)
    return confidence(probs, score, limits)


def valid_order(keys: Tensor, valid: Tensor) -> Tensor:
    """Return the places (N,) that sort ``keys`` (N,), all finite, with invalid ones last.

    Equal keys come in the order that ``torch.sort`` gives them, which is not that of the rows.
    """
    # A stable sort would rank equal confidences in another order than the released code.
    return torch.where(valid, keys, torch.inf).argsort()


def positions(order: Tensor) -> Tensor:
    """Return the inverse of the permutation ``order`` (N,): from 0, where each row stands."""
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))


def row_count(valid: Tensor, configured: int | None, dtype: torch.dtype) -> Tensor:
    """Return the number of valid rows, or the configured one instead, as a scalar tensor."""
    rows = valid.sum(dtype=dtype)
    return rows if configured is None else torch.full_like(rows, configured)


def predicted_prob(logits: Tensor) -> Tensor:
    """Return the largest probability of each row, (N,)."""
    return (logits.amax(dim=1) - logits.logsumexp(dim=1)).exp()
