import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, count
from trainables.losses._base import LOSSES, VARIANTS, ReducedLoss
from trainables.losses._confidence import (
    SCORES,
    positions,
    row_count,
    selective_confidence,
    valid_order,
)


@LOSSES.register("aurc")
class AURCLoss(ReducedLoss):
    """Cross-entropy weighted by the rank of the row's confidence: the batch's AURC.

    The row of rank r among n (1 for the least confident) has the weight ``H_n - H_{n-r}`` with the
    harmonic numbers H: between 1/n and about log n, mean 1. No gradient flows through the weights.
    Rows of equal confidence are ranked in the order of ``torch.sort``, as in the released code.

    ``variant`` selects the confidence: ``paper`` uses the probabilities, ``released`` a second
    softmax of the probabilities, which changes the ranks. ``paper`` is the default: the second
    softmax is an oversight, and its only effect is a wrong order of some rows.

    Source: Zhou et al., Revisiting Reweighted Risk for Calibration, 2025, and Zhou et al., A Novel
    Characterization of the Population AURC, 2024.

    Not for batches of a few rows, whose ranks mean little.

    Args:
        score: Confidence score: ``msp``, ``margin`` or ``neg_entropy``.
        variant: ``paper`` or ``released``, see above.
        batch_size: n. By default the number of rows that are not ignored in the batch; the released
            code always uses the configured batch size, so that a shorter last batch gets only the
            smallest weights.

    Raises:
        ValueError: When called with more than ``batch_size`` rows.
    """

    score: str = choice(default="msp", choices=SCORES)
    variant: str = choice(default="paper", choices=VARIANTS)
    batch_size: int | None = count(default=None, kw_only=True)

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        if self.batch_size is not None and len(logits) > self.batch_size:
            raise ValueError(
                f"expected at most batch_size={self.batch_size} rows, got {len(logits)}"
            )
        weights = self._weights(logits, valid)
        losses = F.cross_entropy(logits, targets, reduction="none")
        return self.reduce(losses * weights, valid)

    @torch.no_grad()
    def _weights(self, logits: Tensor, valid: Tensor) -> Tensor:
        scores = selective_confidence(logits, self.score, double_softmax=self.variant == "released")
        before = positions(valid_order(scores, valid)).to(logits.dtype)
        rows = row_count(valid, self.batch_size, logits.dtype)
        # Ignored rows come last; the clamp keeps them away from the poles of digamma.
        return torch.digamma(rows + 1) - torch.digamma((rows - before).clamp(min=1))
