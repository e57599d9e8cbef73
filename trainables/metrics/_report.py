"""All metrics of one set of predictions in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.metrics._binning import (
    bin_index,
    bin_sums,
    binned_error,
    mass_edges,
    width_edges,
)
from trainables.metrics._scores import ArrayLike, Scores, check_bins

METRICS = ("acc", "nll", "brier", "ece", "aece", "cwece", "cwaece", "mce")
"""The keys of ``calibration_report``, in its order."""


def calibration_report(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
) -> dict[str, float]:
    """Return accuracy, proper scores and calibration errors of one set of predictions.

    Softmax and sums are computed in float64, whatever the precision of the input, on its device.

    ======== =====================================================================================
    acc      Share of rows whose first largest score is the label's, in [0, 1].
    nll      Mean ``-log p_y`` in nats, in [0, inf]; infinite if ``probs`` gives a label 0.
    brier    ``sum_k (p_k - [k = y])^2``, mean over rows, in [0, 2] (not divided by K).
    ece      Top-label error over equal-width bins (Guo et al. 2017), in [0, 1].
    aece     The same over equal-mass bins (Nguyen and O'Connor 2015), in [0, 1].
    cwece    Mean over all K classes of the error of ``p_k`` for ``[k = y]``, equal width (Kull et
             al. 2019; Nixon et al. 2019), in [0, 1]; it shrinks with K.
    cwaece   The same with equal mass in each class, in [0, 1].
    mce      Largest gap of a non-empty equal-width bin, in [0, 1].
    ======== =====================================================================================

    Bins are ``(a, b]``, the first one closed below, so that a probability of exactly 0 or 1 counts.
    Given probabilities are compared with edges rounded to their own precision. ``aece`` and
    ``cwaece`` hold every row in one bin; see ``adaptive_ece`` for ties and for the value that
    released code prints. A class that never occurs as a label counts with its false confidence.

    A binned error is biased upwards: with 10,000 rows even a perfectly calibrated model shows an
    ``ece`` near 0.004. Do not rank methods by differences below that, and do not compare ``cwece``
    between tasks with different K or ``mce`` between small test sets (one sparse bin decides it).

    Args:
        logits: (N, K), unnormalised or log-probabilities, floating; minus infinity is allowed.
        probs: (N, K), rows summing to 1. Exactly one of ``logits`` and ``probs``.
        labels: (N,), integers in [0, K).
        bins: Number of bins of every binned metric, at least 1.

    Returns:
        The metrics by name, all as fractions; see ``METRICS`` for the order.

    Raises:
        ValueError: If both or none of ``logits`` and ``probs`` are given, shapes do not fit, a
            label is out of range, a score is NaN or infinite, or ``probs`` are no probabilities.
    """
    check_bins(bins)
    scores = Scores(logits, probs, labels)
    parts = [
        scores.correct.mean(),
        scores.nll.mean(),
        *_top_label(scores, bins),
        *_over_classes(scores, bins),
    ]
    names = ("acc", "nll", "ece", "aece", "mce", "brier", "cwece", "cwaece")
    values = dict(zip(names, torch.stack(parts).tolist(), strict=True))
    return {name: values[name] for name in METRICS}


def _top_label(scores: Scores, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ECE, adaptive ECE and MCE."""
    confidence, correct = scores.confidence[None], scores.correct[None]
    edges = width_edges(bins, scores.edge_dtype, confidence.device)
    index = bin_index(confidence, edges)
    gaps = bin_sums(index, confidence - correct, bins).abs()
    counts = bin_sums(index, torch.ones_like(confidence), bins)
    ece = gaps.sum() / scores.num_rows
    aece = binned_error(confidence, correct, mass_edges(confidence, bins)).squeeze()
    return ece, aece, (gaps / counts.clamp(min=1)).max()


def _over_classes(scores: Scores, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return Brier score and the class-wise errors of equal width and equal mass."""
    edges = width_edges(bins, scores.edge_dtype, scores.labels.device)
    sums = torch.zeros(3, dtype=torch.float64, device=edges.device)
    for columns, hits in scores.columns():
        sums[0] += (columns - hits).square().sum() / scores.num_rows
        sums[1] += binned_error(columns, hits, edges).sum() / scores.num_classes
        sums[2] += binned_error(columns, hits, mass_edges(columns, bins)).sum() / scores.num_classes
    return sums[0], sums[1], sums[2]
