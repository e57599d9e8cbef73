from torch import Tensor

from trainables.common.fields import number
from trainables.losses._base import LOSSES, RowLoss
from trainables.losses.fl import true_log_prob

EPSILON = 1e-9


@LOSSES.register("ifl")
class InverseFocalLoss(RowLoss):
    """Inverse focal loss, ``-(1 + p_y)^gamma log p_y``: well-learnt rows have more weight.

    In the weight p_y is clamped to [1e-9, 1 - 1e-9], as in the released code; the clamp also stops
    the gradient through the weight.

    Source: Wang et al., Rethinking Calibration of Deep Neural Networks, NeurIPS 2021; exponents and
    code from the aurc paper, which warns of exponents above 3.5 (appendix: 4).

    Use it with a calibrator: it raises the confidence, to leave more room for post-hoc calibration.

    Args:
        gamma: Exponent γ, at least 0; 0 is cross-entropy.
    """

    gamma: float = number(default=2.0, low=0.0)

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_prob = true_log_prob(logits, targets)
        prob = log_prob.exp().clamp(EPSILON, 1 - EPSILON)
        return -((1 + prob) ** self.gamma) * log_prob
