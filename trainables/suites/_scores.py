"""How well a score tells in-distribution images from others."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return the area under the ROC curve, in [0, 1].

    In-distribution is the positive class and should have the higher scores: it is the probability
    that a random in-distribution image scores above a random other one, ties counting one half. One
    half is chance; turning both score and positive class round leaves it as it is.

    Args:
        inside: Scores of in-distribution images, (N,).
        outside: Scores of other images, (M,).

    Raises:
        ValueError: If one is empty or holds NaN.
    """
    _check(inside, outside)
    ordered = inside.sort().values
    above = len(ordered) - torch.searchsorted(ordered, outside, right=True)
    equal = len(ordered) - above - torch.searchsorted(ordered, outside)
    wins = above.sum().item() + equal.sum().item() / 2
    return wins / (len(inside) * len(outside))


def fpr_at_tpr(inside: Tensor, outside: Tensor, tpr: float = 0.95) -> float:
    """Return the false-positive rate at a true-positive rate, in [0, 1]; lower is better.

    In-distribution is the positive class, as in Liang et al., Enhancing the reliability of
    out-of-distribution image detection, ICLR 2018: the threshold is the highest that accepts at
    least the share ``tpr`` of in-distribution images, and the rate is the share of the other images
    that it accepts too. Code that takes the other images as positive prints another number.

    Args:
        inside: Scores of in-distribution images, (N,), higher for more of them.
        outside: Scores of other images, (M,).
        tpr: In (0, 1].

    Raises:
        ValueError: If scores are missing or NaN, or ``tpr`` is outside its range.
    """
    _check(inside, outside)
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr={tpr!r} is outside (0, 1]")
    accepted = math.ceil(tpr * len(inside) - 1e-9)
    threshold = inside.sort(descending=True).values[accepted - 1]
    return (outside >= threshold).double().mean().item()


def _check(inside: Tensor, outside: Tensor) -> None:
    for name, scores in (("inside", inside), ("outside", outside)):
        if scores.ndim != 1 or not len(scores):
            raise ValueError(f"{name} has shape {tuple(scores.shape)}, allowed is (N,), N >= 1")
        if scores.isnan().any():
            raise ValueError(f"{name} holds NaN")
