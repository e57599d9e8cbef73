"""Expected squared difference."""

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES, VARIANTS, masked_sum
from trainables.losses._penalised import PenalisedLoss, positive_sqrt, top_label


def esd(confidence: Tensor, correct: Tensor, valid: Tensor) -> Tensor:
    """Return the unbiased estimate of the expected squared difference, a scalar.

    With v = correctness - confidence, it is the mean over rows i of the average of ``v_j v_k`` over
    all pairs of other rows; a pair counts as 0 if one of its confidences is above that of i. The
    estimate may be negative, and is 0 for fewer than 3 rows. Takes O(N log N) time and O(N) memory
    for N rows.

    Args:
        confidence: (N,); its order is a constant for the gradient.
        correct: (N,), bool.
        valid: (N,), bool, False for ignored rows.
    """
    gap = (correct.to(confidence.dtype) - confidence).where(valid, 0)
    powers = torch.stack([gap, gap.square()], dim=1)
    ordered, order = confidence.detach().sort()
    running = F.pad(powers.index_select(0, order).cumsum(dim=0), (0, 0, 1, 0))
    past = torch.searchsorted(ordered, confidence.detach(), right=True)
    first, second = (running.index_select(0, past) - powers).unbind(dim=1)
    count = valid.sum().to(gap.dtype)
    triples = count * (count - 1) * (count - 2)
    total = masked_sum(first.square() - second, valid)
    return (total / triples.clamp(min=1)).where(count > 2, 0)


@LOSSES.register("esd")
class ESDLoss(PenalisedLoss):
    """Cross-entropy plus the square root of the expected squared difference (ESD).

    The estimate has no bins, kernel or other parameter. If it is negative, or a batch has fewer
    than three rows, the penalty and its gradient are 0. This is frequent in small batches.

    For pixels, it uses a sample of 4096 per batch.

    Source: Yoon et al., ESD: Expected Squared Difference as a Tuning-Free Trainable Calibration
    Measure, ICLR 2023.

    Args:
        weight: Factor of the penalty (lambda), at least 0.
        variant: ``paper`` takes the largest probability as confidence; ``released`` (the public
            copy in BalCAL) takes the largest logit. The default is ``paper``: a logit minus a
            correctness of 0 or 1 does not measure calibration.
    """

    most_pixels = 4096
    weight: float = number(default=0.5, low=0.0)
    variant: str = choice(default="paper", choices=VARIANTS)

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the root of the estimate, or 0 if it is negative."""
        scores = logits if self.variant == "released" else probs
        confidence, correct = top_label(scores, targets)
        return positive_sqrt(esd(confidence, correct, valid))
