import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import flag, number
from trainables.losses._base import LOSSES, RowLoss


def true_log_prob(logits: Tensor, targets: Tensor) -> Tensor:
    """Return ``log p_y`` of each row, (N,)."""
    return -F.cross_entropy(logits, targets, reduction="none")


def power(base: Tensor, exponent: float | Tensor) -> Tensor:
    """Return ``base ** exponent`` for a base of at least 0, with a gradient that is finite at 0."""
    # A power below one has an infinite slope at 0, so 0 is replaced by the smallest normal number,
    # which has no gradient. Other values do not change.
    return base.clamp(min=torch.finfo(base.dtype).tiny).pow(exponent)


@LOSSES.register("fl")
class FocalLoss(RowLoss):
    """Focal loss, ``-(1 - p_y)^gamma log p_y``: well-learnt rows have less weight.

    Source: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017; for calibration Mukhoti et
    al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020. The latter's released code
    sums over the batch (``reduction="sum"``).

    Not for a network that is already under-confident: it lowers the confidence further.

    Args:
        gamma: Focusing parameter γ, at least 0; 0 is cross-entropy.
        detach: Whether the weight ``(1 - p_y)^gamma`` is a constant for the gradient, as in the
            released code of SCTL. By default the gradient flows through it, as in the definition.
            The value is the same.
    """

    gamma: float = number(default=3.0, low=0.0)
    detach: bool = flag(default=False)

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_prob = true_log_prob(logits, targets)
        weighing = log_prob.detach() if self.detach else log_prob
        return -power(1 - weighing.exp(), self.gamma) * log_prob
