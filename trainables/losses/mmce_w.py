"""Weighted maximum mean calibration error."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.checks import check_choice
from trainables.losses._laplacian import laplacian_gram
from trainables.losses._penalised import PenalisedLoss, top_label
from trainables.losses._registry import LOSSES

# The released code's guards: of the divisions, and of the square root.
_DIVISION_GUARD = 1e-5
_ROOT_GUARD = 1e-10


def mmce_w(probs: Tensor, targets: Tensor, valid: Tensor, *, normalise_twice: bool) -> Tensor:
    """Return the weighted maximum mean calibration error of a batch, a scalar of at least 0.

    Takes O(N log N) time and O(N) memory for N rows. It is 0, with gradient 0, if the batch is all
    right or all wrong.

    Args:
        probs: (N, K), softmax of the logits.
        targets: (N,), int64, in [0, K).
        valid: (N,), bool, False for rows that do not count.
        normalise_twice: Divide each mean over pairs by its number of pairs once more.
    """
    confidence, correct = top_label(probs, targets)
    right, wrong = valid & correct, valid & ~correct
    features = torch.stack([(1 - confidence).where(right, 0), confidence.where(wrong, 0)], dim=1)
    gram = laplacian_gram(confidence, features)
    counts = torch.stack([right.sum(), wrong.sum()]).to(gram.dtype)
    squared = (gram * _pair_weights(counts, normalise_twice)).sum()
    root = (squared + _ROOT_GUARD).clamp(min=_ROOT_GUARD**2).sqrt()
    return root.where((counts > 0).all(), 0)


def _pair_weights(counts: Tensor, normalise_twice: bool) -> Tensor:
    """Return the factors, (2, 2), of the kernel sums: one over pairs, negative off the diagonal."""
    signs = 2 * torch.eye(2, dtype=counts.dtype, device=counts.device) - 1
    pairs = counts.outer(counts)
    weights = signs / pairs.clamp(min=1)
    return weights / (pairs + _DIVISION_GUARD) if normalise_twice else weights


@LOSSES.register("mmce-w")
class WeightedMMCELoss(PenalisedLoss):
    """Cross-entropy plus the weighted maximum mean calibration error.

    The distance between the kernel embeddings of the right rows, weighted by 1 - r, and of the
    wrong rows, weighted by r, for confidences r; it keeps the few wrong rows of a batch from being
    drowned. It is 0 for a batch that is all right or all wrong: not for batches so small, or
    networks so accurate, that this is the rule.

    Source: Kumar et al., Trainable Calibration Measures for Neural Networks from Kernel Mean
    Embeddings, ICML 2018.

    Args:
        weight: Factor of the penalty, at least 0.
        variant: ``released`` divides every mean over pairs by its number of pairs once more, which
            makes the penalty shrink as the batch grows; ``paper`` takes the means. Both take the
            square root, of 1e-10 more. The default is ``released``, with which the published
            weight was found.
        ignore_index: Target value of rows that take no part.

    Raises:
        ValueError: If ``weight`` is negative or ``variant`` unknown.
    """

    def __init__(
        self, weight: float = 2.0, variant: str = "released", *, ignore_index: int = -100
    ) -> None:
        super().__init__(weight, ignore_index=ignore_index)
        self.variant = check_choice("variant", variant, ("paper", "released"))

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the weighted error of the batch."""
        return mmce_w(probs, targets, valid, normalise_twice=self.variant == "released")
