from torch import Tensor

from trainables.common.fields import number
from trainables.losses._base import LOSSES, masked_mean
from trainables.losses._penalised import PenalisedLoss, top_label


@LOSSES.register("dca")
class DCALoss(PenalisedLoss):
    """Cross-entropy plus ``|mean confidence - accuracy|`` of the batch.

    The accuracy is a constant for the gradient. Over- and under-confident rows of one batch cancel
    out.

    Source: Liang et al., Improved Trainable Calibration Method for Neural Networks on Medical
    Imaging Classification, BMVC 2020, as released with MDCA.

    Args:
        weight: Factor of the penalty (beta), at least 0.
    """

    weight: float = number(default=1.0, low=0.0)

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the gap between mean confidence and accuracy, in [0, 1]."""
        confidence, correct = top_label(probs, targets)
        return masked_mean(confidence - correct.to(confidence.dtype), valid).abs()
