"""Maximum mean calibration error."""

from __future__ import annotations

from torch import Tensor

from trainables.checks import check_choice
from trainables.losses._laplacian import laplacian_gram
from trainables.losses._penalised import PenalisedLoss, positive_sqrt, top_label
from trainables.losses._registry import LOSSES


def mmce(probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """Return the squared maximum mean calibration error of a batch, a scalar in [0, 1].

    Takes O(N log N) time and O(N) memory for N rows.

    Args:
        probs: (N, K), softmax of the logits.
        targets: (N,), int64, in [0, K).
        valid: (N,), bool, False for rows that do not count.
    """
    confidence, correct = top_label(probs, targets)
    residual = (correct.to(confidence.dtype) - confidence).where(valid, 0)
    count = valid.sum().clamp(min=1)
    return laplacian_gram(confidence, residual.unsqueeze(1)).sum() / count.square()


@LOSSES.register("mmce")
class MMCELoss(PenalisedLoss):
    """Cross-entropy plus the maximum mean calibration error (MMCE).

    Averages ``(c_i - r_i)(c_j - r_j) exp(-|r_i - r_j| / 0.4)`` over all pairs, each with itself
    included, where r is the largest probability and c tells whether its class is right; c is a
    constant for the gradient. Not for batches of a few rows: the estimate is then mostly its
    diagonal, a squared error of the confidence.

    Source: Kumar et al., Trainable Calibration Measures for Neural Networks from Kernel Mean
    Embeddings, ICML 2018.

    Args:
        weight: Factor of the penalty, at least 0.
        variant: ``released`` adds the squared error, as all public code does; ``paper`` takes its
            square root. The default is ``released``, with which the published weights were found.
        ignore_index: Target value of rows that take no part.

    Raises:
        ValueError: If ``weight`` is negative or ``variant`` unknown.
    """

    def __init__(
        self, weight: float = 1.0, variant: str = "released", *, ignore_index: int = -100
    ) -> None:
        super().__init__(weight, ignore_index=ignore_index)
        self.variant = check_choice("variant", variant, ("paper", "released"))

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the squared error, or its root for ``variant="paper"``."""
        squared = mmce(probs, targets, valid)
        return squared if self.variant == "released" else positive_sqrt(squared)
