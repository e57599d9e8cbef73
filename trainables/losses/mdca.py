"""Multi-class difference of confidence and accuracy."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.checks import check_choice
from trainables.losses._base import RowLoss
from trainables.losses._penalised import PenalisedLoss
from trainables.losses._registry import LOSSES
from trainables.losses.ce import CrossEntropyLoss
from trainables.losses.fl import FocalLoss
from trainables.losses.ls import LabelSmoothingLoss


def mdca(probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """Return ``mean_k |mean_n p_nk - mean_n [y_n = k]|`` of a batch, a scalar in [0, 2 / K].

    Args:
        probs: (N, K), softmax of the logits.
        targets: (N,), int64, in [0, K).
        valid: (N,), bool, False for rows that do not count.
    """
    counts = valid.to(probs.dtype)
    expected = counts @ probs
    occurred = torch.zeros_like(expected).index_add(0, targets, counts)
    return (expected - occurred).abs().mean() / counts.sum().clamp(min=1)


@LOSSES.register("mdca")
class MDCALoss(PenalisedLoss):
    """A classification loss plus the multi-class difference of confidence and accuracy (MDCA).

    For every class, the mean probability in the batch is pulled to the class's frequency there.
    Not for batches with fewer rows than classes: most frequencies are then 0.

    Source: Hebbalaguppe et al., A Stitch in Time Saves Nine, CVPR 2022; the released code
    averages over the classes as well. One public copy returns the penalty without a
    classification loss; that is not offered, since it does not train a classifier.

    Args:
        weight: Factor of the penalty (beta), at least 0.
        base: The classification loss: ``ce``, ``fl`` (focal) or ``ls`` (label smoothing).
        gamma: Focusing parameter of ``base="fl"``, at least 0; unused otherwise.
        smoothing: Probability that ``base="ls"`` moves from the true class to the other K - 1
            together, in [0, 1); unused otherwise.
        ignore_index: Target value of rows that take no part.

    Raises:
        ValueError: If a number is out of its range or ``base`` unknown.
    """

    def __init__(
        self,
        weight: float = 1.0,
        base: str = "ce",
        gamma: float = 1.0,
        smoothing: float = 0.1,
        *,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(weight, ignore_index=ignore_index)
        check_choice("base", base, ("ce", "fl", "ls"))
        rows: dict[str, RowLoss] = {
            "ce": CrossEntropyLoss(),
            "fl": FocalLoss(gamma=gamma),
            "ls": LabelSmoothingLoss(smoothing=smoothing, spread="others"),
        }
        self.rows = rows[base]

    def base(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the classification loss of each row."""
        return self.rows.per_row(logits, targets)

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the difference of confidence and accuracy of the batch."""
        return mdca(probs, targets, valid)
