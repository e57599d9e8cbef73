"""What the focal family shares."""

import torch
from torch import Tensor
from torch.nn import functional as F


def true_log_prob(logits: Tensor, targets: Tensor) -> Tensor:
    """Return ``log p_y`` of each row, (N,)."""
    return -F.cross_entropy(logits, targets, reduction="none")


def power(base: Tensor, exponent: float | Tensor) -> Tensor:
    """Return ``base ** exponent`` for a base of at least 0, with a gradient that is finite at 0."""
    # A power below one has an infinite slope at 0; the smallest normal number stands in for 0 and
    # stops the gradient there, while every other value passes unchanged.
    return base.clamp(min=torch.finfo(base.dtype).tiny).pow(exponent)
