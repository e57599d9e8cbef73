"""Equal-mass calibration errors on their own, in our reading and in that of released code."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.metrics._binning import bin_index, bin_sums, mass_edges
from trainables.metrics._scores import ArrayLike, Scores, check_bins

VARIANTS = ("paper", "released")


def adaptive_ece(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
    variant: str = "paper",
) -> float:
    """Return the top-label calibration error over equal-mass bins (AECE), a fraction in [0, 1].

    Edges are interpolated quantiles of the confidences, the same in both variants. ``paper`` puts
    every row in exactly one bin (Nguyen and O'Connor 2015). ``released`` leaves the lowest edge
    open, as torrvision/focal_calibration and its copies do, which drops every row with the smallest
    confidence: the value of the papers' tables. ``paper`` is the default because it is right where
    many rows share the smallest confidence (``released`` is 0 if all do) and elsewhere differs by
    one row's weight, at most 1/N.

    Rows of equal confidence stay together, in the first bin that ends at or above them, so the
    value does not depend on the order of rows; with many ties bins are not of equal mass. With
    fewer rows than bins every distinct confidence has its own bin.

    Args:
        logits: See ``calibration_report``.
        probs: See ``calibration_report``.
        labels: See ``calibration_report``.
        bins: Number of bins, at least 1.
        variant: ``paper`` or ``released``.

    Raises:
        ValueError: See ``calibration_report``; or if ``variant`` is neither.
    """
    scores = _checked(logits, probs, labels, bins, variant)
    return float(_mass_error(scores.confidence[None], scores.correct[None], bins, variant))


def classwise_adaptive_ece(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
    variant: str = "paper",
) -> float:
    """Return the class-wise calibration error over equal-mass bins of each class, in [0, 1].

    The mean over all K classes of ``adaptive_ece`` of ``p_k`` for ``[k = y]`` (Nixon et al. 2019).
    ``released`` drops every row with a class's smallest probability; it is the ACE of
    mdca-loss/MDCA-Calibration where ``bins`` divides N (elsewhere that code puts the remainder in
    the last bin). The default is ``paper`` for the reason given in ``adaptive_ece``.

    Args:
        logits: See ``calibration_report``.
        probs: See ``calibration_report``.
        labels: See ``calibration_report``.
        bins: Number of bins, at least 1.
        variant: ``paper`` or ``released``.

    Raises:
        ValueError: See ``adaptive_ece``.
    """
    scores = _checked(logits, probs, labels, bins, variant)
    errors = [_mass_error(values, hits, bins, variant).sum() for values, hits in scores.columns()]
    return float(torch.stack(errors).sum() / scores.num_classes)


def _checked(
    logits: ArrayLike | None,
    probs: ArrayLike | None,
    labels: ArrayLike | None,
    bins: int,
    variant: str,
) -> Scores:
    check_bins(bins)
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r} is not one of {', '.join(VARIANTS)}")
    return Scores(logits, probs, labels)


def _mass_error(scores: Tensor, hits: Tensor, bins: int, variant: str) -> Tensor:
    edges = mass_edges(scores, bins)
    gaps = scores - hits
    if variant == "released":
        gaps = gaps * (scores > edges[:, :1])
    sums = bin_sums(bin_index(scores, edges), gaps, bins)
    return sums.abs().sum(dim=1) / scores.shape[1]
