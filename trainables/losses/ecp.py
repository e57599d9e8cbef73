"""Explicit confidence penalty."""

import math

from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, number
from trainables.common.logit_rows import masked_classes
from trainables.losses._base import LOSSES, VARIANTS, RowLoss

EPSILON = 1e-10


@LOSSES.register("ecp")
class ConfidencePenaltyLoss(RowLoss):
    """Cross-entropy minus ``weight`` times the entropy (in nats) of the predicted distribution.

    ``variant`` selects the entropy: ``paper`` sums ``-p log p`` over the K classes; ``released``
    (mbls) averages over the classes, so that the effective weight is ``weight / K``, and clamps p
    to [1e-10, 1 - 1e-10], which also stops the gradient. ``released`` is the default: the published
    weight of 0.1 is that of the released configurations.

    Source: Pereyra et al., Regularizing Neural Networks by Penalizing Confident Output
    Distributions, 2017.

    Do not use one ``weight`` for different numbers of classes: ``released`` weakens with K.

    Args:
        weight: Weight λ of the entropy, at least 0.
        variant: ``released`` or ``paper``, see above.
    """

    weight: float = number(default=0.1, low=0.0)
    variant: str = choice(default="released", choices=VARIANTS)

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=1)
        cross_entropy = F.nll_loss(log_probs, targets, reduction="none")
        return cross_entropy - self.weight * self._entropy(log_probs)

    def _entropy(self, log_probs: Tensor) -> Tensor:
        if self.variant == "paper":
            # A masked class adds 0, the limit of p log p, where -inf would give NaN.
            log_probs = log_probs.masked_fill(masked_classes(log_probs.detach()), 0)
            return -(log_probs.exp() * log_probs).sum(dim=1)
        clamped = log_probs.clamp(math.log(EPSILON), math.log1p(-EPSILON))
        return -(clamped.exp() * clamped).mean(dim=1)
