"""Generalised cross-entropy."""

import torch
from torch import Tensor
from torch.nn import functional as F

from calsweep.plugins import LOSSES, RowLoss, number


@LOSSES.register("gce")
class GeneralisedCrossEntropyLoss(RowLoss):
    """Generalised cross-entropy, from cross-entropy (q near 0) to 1 - p_y.

    Source: Zhang and Sabuncu, Generalized Cross Entropy Loss, NeurIPS 2018.
    """

    q: float = number(default=0.7, low=0.0, high=1.0, open_low=True)

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return ``(1 - p_y^q) / q`` of each row."""
        log_prob = -F.cross_entropy(logits, targets, reduction="none")
        return -torch.expm1(self.q * log_prob) / self.q
