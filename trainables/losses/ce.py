"""Cross-entropy."""

from torch import Tensor
from torch.nn import functional as F

from trainables.losses._base import LOSSES, RowLoss


@LOSSES.register("ce")
class CrossEntropyLoss(RowLoss):
    """Cross-entropy, ``-log p_y``: the baseline that every other method is compared with."""

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return ``-log p_y`` of each row."""
        return F.cross_entropy(logits, targets, reduction="none")
