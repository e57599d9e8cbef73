from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES, RowLoss, allowed_classes


@LOSSES.register("ls")
class LabelSmoothingLoss(RowLoss):
    """Cross-entropy with the label ``1 - smoothing`` on the true class and the rest spread evenly.

    ``spread`` selects the classes that share the rest: ``all`` K classes, including the true one
    (Szegedy et al.; released code of mbls), or the K - 1 ``others`` (released code of MDCA). With
    the same ``smoothing`` their strengths differ by a factor of (K - 1)/K. The default is the
    original definition, with which the published value was chosen. Masked classes get no share.

    Source: Szegedy et al., Rethinking the Inception Architecture, CVPR 2016.

    Not for networks that are distilled or whose ranking of confidences matters: smoothing removes
    differences between classes.

    Args:
        smoothing: Share α of the label that is spread, in [0, 1).
        spread: ``all`` or ``others``.
    """

    smoothing: float = number(default=0.05, low=0.0, high=1.0, open_high=True)
    spread: str = choice(default="all", choices=("all", "others"))

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=1)
        true = F.nll_loss(log_probs, targets, reduction="none")
        masked, more = allowed_classes(logits, apart=int(self.spread == "others"))
        rest, classes = -log_probs.masked_fill(masked, 0).sum(dim=1), logits.shape[1]
        if self.spread == "others":
            rest, classes = rest - true, classes - 1
        return (1 - self.smoothing) * true + self.smoothing * rest / max(classes, 1) * more
