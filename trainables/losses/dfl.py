from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES, VARIANTS, RowLoss
from trainables.losses.fl import power


@LOSSES.register("dfl")
class DualFocalLoss(RowLoss):
    """Dual focal loss, ``-(1 - p_y + p_j)^gamma log p_y``, with the probability p_j of a rival.

    The gradient flows through p_y and p_j. ``variant`` selects the rival:

    - ``released``: the class with the largest probability *strictly below* p_y. A wrong class that
      wins or ties is ignored; if no class is below, ``p_j = 0`` and the row has the focal loss.
    - ``paper``: the most probable class other than the true one, which is the prediction if the row
      is classified wrongly. Both variants agree on rows that are classified correctly without a
      tie.

    ``released`` is the default: all published exponents were chosen with that code.

    Source: Tao et al., Dual Focal Loss for Calibration, ICML 2023. Its code sums over the batch
    (``reduction="sum"``), that of the aurc paper averages.

    Not for two classes: the rival's probability is then ``1 - p_y`` or 0.

    Args:
        gamma: Focusing parameter γ, at least 0; 0 is cross-entropy.
        variant: ``released`` or ``paper``, see above.
    """

    gamma: float = number(default=5.0, low=0.0)
    variant: str = choice(default="released", choices=VARIANTS)

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=1)
        true = targets.unsqueeze(1)
        rivals = self._rivals(log_probs.detach().exp(), true)
        # Search the rival without a gradient; the gradient then needs only one entry.
        rival = rivals.topk(1, dim=1)
        prob_rival = log_probs.gather(1, rival.indices).exp() * (rival.values > 0)
        log_prob = log_probs.gather(1, true)
        return -(power(1 - log_prob.exp() + prob_rival, self.gamma) * log_prob).squeeze(1)

    def _rivals(self, probs: Tensor, true: Tensor) -> Tensor:
        """Set the probabilities of the classes that cannot be the rival to 0, in place."""
        if self.variant == "paper":
            return probs.scatter_(1, true, 0.0)
        return probs.masked_fill_(probs >= probs.gather(1, true), 0.0)
