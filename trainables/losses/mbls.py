from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES, VARIANTS, MarginLoss, allowed_classes


@LOSSES.register("mbls")
class MarginLabelSmoothingLoss(MarginLoss):
    """Cross-entropy plus ``weight`` times the distances of logits beyond a margin.

    Class j of a row has the penalty ``max(0, max_k z_k - z_j - margin)``; the gradient flows
    through the maximum as well. ``variant`` selects the reduction over the classes: ``paper`` sums;
    ``released`` averages, so that the effective weight is ``weight / K``. ``released`` is the
    default, because the released configurations use the published weight of 0.1.

    Masked classes have no distance and do not count in the average. The metric ``spared`` of an
    epoch is the share of training rows without a penalty.

    ``margin=0`` is the equality-constrained ablation of the paper (``mbls-m0``).

    Source: Liu et al., The Devil is in the Margin, CVPR 2022.

    A margin above the spread of the network's logits has no effect.

    Args:
        margin: Margin m in units of logits, at least 0.
        weight: Weight λ of the penalty, at least 0 (``alpha`` in the released code).
        variant: ``released`` or ``paper``, see above.
    """

    margin: float = number(default=6.0, low=0.0)
    weight: float = number(default=0.1, low=0.0)
    variant: str = choice(default="released", choices=VARIANTS)

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        cross_entropy = F.cross_entropy(logits, targets, reduction="none")
        largest = logits.max(dim=1, keepdim=True).values
        masked, more = allowed_classes(logits)
        excess = (largest - logits).masked_fill_(masked, 0).sub_(self.margin).relu_()
        penalty = excess.sum(dim=1) if self.variant == "paper" else excess.mean(dim=1) * more
        self.count(penalty, valid)
        return self.reduce(cross_entropy + self.weight * penalty, valid)
