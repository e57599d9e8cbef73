from torch import Tensor

from trainables.common.fields import flag, number
from trainables.losses._base import LOSSES, RowLoss
from trainables.losses._focal import power, true_log_prob


@LOSSES.register("fl")
class FocalLoss(RowLoss):
    """Focal loss, ``-(1 - p_y)^gamma log p_y``: rows that are learnt well count less.

    Source: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017; for calibration Mukhoti et
    al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020. The latter's released code
    sums over the batch (``reduction="sum"``).

    Not for a network that is already under-confident: it lowers the confidence further.

    Args:
        gamma: Focusing parameter γ, at least 0; 0 is cross-entropy.
        detach: Whether the weight ``(1 - p_y)^gamma`` is a constant for the gradient. The value is
            the same. The default lets the gradient through, as the definition has it; the released
            code of SCTL does not.
    """

    gamma: float = number(default=3.0, low=0.0)
    detach: bool = flag(default=False)

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_prob = true_log_prob(logits, targets)
        weighing = log_prob.detach() if self.detach else log_prob
        return -power(1 - weighing.exp(), self.gamma) * log_prob
