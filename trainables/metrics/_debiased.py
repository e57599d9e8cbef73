"""The 15-bin error without the part of its upward bias that can be told from the data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainables.metrics._binning import bin_index, bin_sums, width_edges
from trainables.metrics._scores import ArrayLike, Scores, check_bins


def debiased_ece(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
) -> float:
    """Return the top-label calibration error over equal-width bins with its bias subtracted.

    Kumar, Liang and Ma (2019, section 5 and appendix): were the accuracy of a bin drawn anew, from
    a normal distribution around the one seen, the error would be higher by some amount; that amount
    is subtracted. The mean absolute value of a normal variable has a closed form, so nothing is
    drawn. The bins are those of ``ece``, so that the two differ by the bias alone; the square of
    the L2 error could be freed of bias altogether, but stands beside no published number.

    Of a calibrated model's ``ece`` about four tenths are subtracted, of a badly calibrated one's
    next to nothing, for there is next to no bias. A bin whose rows are all right, or all wrong, is
    left as it is.

    Args:
        logits: See ``calibration_report``.
        probs: See ``calibration_report``.
        labels: See ``calibration_report``.
        bins: Number of equal-width bins, at least 1.

    Returns:
        A fraction, at most ``ece``; by chance it may be slightly below 0.

    Raises:
        ValueError: See ``calibration_report``.
    """
    check_bins(bins)
    scores = Scores(logits, probs, labels)
    confidence, correct = scores.confidence[None], scores.correct[None]
    index = bin_index(confidence, width_edges(bins, scores.edge_dtype, confidence.device))
    counts = bin_sums(index, torch.ones_like(confidence), bins)
    filled = counts.clamp(min=1)
    gaps = bin_sums(index, confidence - correct, bins).abs() / filled
    accuracy = bin_sums(index, correct, bins) / filled
    deviation = (accuracy * (1 - accuracy) / filled).clamp(min=0).sqrt()
    debiased = 2 * gaps - _mean_absolute(gaps, deviation)
    return float((counts * debiased).sum() / scores.num_rows)


def _mean_absolute(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the mean absolute value of normal variables."""
    ratio = torch.where(deviation > 0, mean / deviation.clamp(min=1e-300), torch.inf)
    spread = math.sqrt(2 / math.pi) * deviation * torch.exp(-ratio.square() / 2)
    return spread + mean * torch.erf(ratio / math.sqrt(2))
