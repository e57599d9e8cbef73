import torch
from torch import Tensor

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES, RowLoss
from trainables.losses._penalised import PenalisedLoss
from trainables.losses.ce import CrossEntropyLoss
from trainables.losses.fl import FocalLoss
from trainables.losses.ls import LabelSmoothingLoss


@LOSSES.register("mdca")
class MDCALoss(PenalisedLoss):
    """A classification loss plus the multi-class difference of confidence and accuracy (MDCA).

    For every class, the mean probability in the batch is pulled to the class's frequency there.
    Not for batches with fewer rows than classes: most frequencies are then 0.

    Source: Hebbalaguppe et al., A Stitch in Time Saves Nine, CVPR 2022; the released code
    averages over the classes as well. One public copy returns the penalty without a classification
    loss; this variant is not supported, because it does not train a classifier.

    Args:
        weight: Factor of the penalty (beta), at least 0.
        base: The classification loss: ``ce``, ``fl`` (focal) or ``ls`` (label smoothing).
        gamma: Focusing parameter of ``base="fl"``, at least 0; unused otherwise.
        smoothing: Total probability that ``base="ls"`` moves from the true class to the K - 1
            others, in [0, 1); unused otherwise.
    """

    weight: float = number(default=1.0, low=0.0)
    base: str = choice(default="ce", choices=("ce", "fl", "ls"))
    gamma: float = number(default=1.0, low=0.0)
    smoothing: float = number(default=0.1, low=0.0, high=1.0, open_high=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        rows: dict[str, RowLoss] = {
            "ce": CrossEntropyLoss(),
            "fl": FocalLoss(gamma=self.gamma),
            "ls": LabelSmoothingLoss(smoothing=self.smoothing, spread="others"),
        }
        self.rows = rows[self.base]

    def row_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.rows.per_row(logits, targets)

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return ``mean_k |mean_n p_nk - mean_n [y_n = k]|`` of the batch, in [0, 2 / K]."""
        counts = valid.to(probs.dtype)
        expected = counts @ probs
        occurred = torch.zeros_like(expected).index_add(0, targets, counts)
        return (expected - occurred).abs().mean() / counts.sum().clamp(min=1)
