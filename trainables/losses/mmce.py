from torch import Tensor

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES, VARIANTS
from trainables.losses._laplacian import laplacian_gram
from trainables.losses._penalised import PenalisedLoss, positive_sqrt, top_label


@LOSSES.register("mmce")
class MMCELoss(PenalisedLoss):
    """Cross-entropy plus the maximum mean calibration error (MMCE).

    The squared error is the average of ``(c_i - r_i)(c_j - r_j) exp(-|r_i - r_j| / 0.4)`` over all
    pairs, also of a row with itself. Here r is the largest probability, and c is 1 if its class is
    right, else 0; c is a constant for the gradient. Not for batches of a few rows, where pairs of a
    row with itself dominate. Takes O(N log N) time and O(N) memory for N rows.

    For pixels, it uses a sample of 4096 per batch.

    Source: Kumar et al., Trainable Calibration Measures for Neural Networks from Kernel Mean
    Embeddings, ICML 2018.

    Args:
        weight: Factor of the penalty, at least 0.
        variant: ``released`` adds the squared error, as all public code does; ``paper`` takes its
            square root. The default is ``released``, with which the published weights were found.
    """

    most_pixels = 4096
    weight: float = number(default=1.0, low=0.0)
    variant: str = choice(default="released", choices=VARIANTS)

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the squared error, or its root for ``variant="paper"``."""
        confidence, correct = top_label(probs, targets)
        residual = (correct.to(confidence.dtype) - confidence).where(valid, 0)
        gram = laplacian_gram(confidence, residual.unsqueeze(1))
        squared = gram.sum() / valid.sum().clamp(min=1).square()
        return squared if self.variant == "released" else positive_sqrt(squared)
