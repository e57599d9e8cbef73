"""Averages of predictions, in a precision that they can be summed in."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def full_precision(values: Tensor) -> Tensor:
    """Return half-precision values as float32, others unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def log_mean_probabilities(logits: Iterable[Tensor]) -> Tensor:
    """Return the log of the averaged class probabilities, (N, K), of logits (N, K), at least one.

    One set of logits is held at a time. The outcome is itself a set of logits.
    """
    total, count = None, 0
    for part in logits:
        row = full_precision(part).log_softmax(dim=1)
        total = row if total is None else torch.logaddexp(total, row)
        count += 1
    if total is None:
        raise ValueError("logits is empty: at least one set is needed")
    return total - math.log(count)
