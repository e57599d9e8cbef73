from torch import Tensor
from torch.nn import functional as F

from trainables.losses._base import LOSSES, RowLoss


@LOSSES.register("brier")
class BrierLoss(RowLoss):
    """Brier score, ``sum_k (p_k - [k = y])^2``, in [0, 2].

    Source: Brier, Verification of Forecasts Expressed in Terms of Probability, 1950; as a training
    loss in Mukhoti et al., NeurIPS 2020. As in that paper, the loss is a sum over classes; the
    released code of aurc and BalCAL averages over the K classes, which divides it by K.

    Not for many classes or a network far from its optimum, because the gradient of a confidently
    wrong row vanishes.
    """

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        probs = F.softmax(logits, dim=1)
        one = probs.new_ones(1, 1).expand(len(probs), 1)
        return probs.scatter_add(1, targets.unsqueeze(1), -one).square().sum(dim=1)
