"""What each row adds to a metric, so that two networks can be compared row by row."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trainables.metrics._binning import Binned, mass_edges, width_edges
from trainables.metrics._metrics import METRICS
from trainables.metrics._registered import registered_terms
from trainables.metrics._scores import ArrayLike, Scores
from trainables.metrics._smooth import smooth_terms

BINS = 15


def row_terms(metric: str, logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return terms (N,), float64, whose mean is a metric of ``evaluation_report``.

    Of proper scores and accuracy a term is the row's own score. Of a calibration error it is the
    row's gap between score and hit, with the sign of what the bin, or the neighbourhood, sums to:
    the linear part of the error at these rows. So the standard deviation of the terms over
    sqrt(N), of one network or of the difference of two on the same rows, is the standard error of
    the metric by the delta method; where a bin's gap is close to 0 it is too large.

    Args:
        metric: ``acc``, a plugin's, or one that a search can minimise, ``nll_after_ts`` apart.
        logits: (N, K), unnormalised or log-probabilities.
        labels: (N,), integers in [0, K).

    Raises:
        ValueError: If the metric has no terms, or the rows are not as ``calibration_report`` wants
            them.
    """
    if METRICS.code(metric) is not None:
        return registered_terms(METRICS[metric], logits, labels)
    if metric not in _TERMS:
        raise ValueError(f"metric={metric!r} is not one of {', '.join(_TERMS)}")
    return _TERMS[metric](Scores(logits, None, labels))


def _width(scores: Scores) -> Binned:
    edges = width_edges(BINS, torch.float64, scores.labels.device)
    return Binned(scores.confidence[None], scores.correct[None], edges)


def _mass(scores: Scores) -> Binned:
    confidence = scores.confidence[None]
    return Binned(confidence, scores.correct[None], mass_edges(confidence, BINS))


def _class_wise(scores: Scores, by_mass: bool) -> Tensor:
    edges = width_edges(BINS, torch.float64, scores.labels.device)
    total = torch.zeros((), dtype=torch.float64)
    for columns, hits in scores.columns():
        binned = Binned(columns, hits, mass_edges(columns, BINS) if by_mass else edges)
        total = total + binned.error_terms().sum(0)
    return total / scores.num_classes


_TERMS: Mapping[str, Callable[[Scores], Tensor]] = {
    "acc": lambda scores: scores.correct,
    "nll": lambda scores: scores.nll,
    "brier": lambda scores: scores.brier,
    "ece": lambda scores: _width(scores).error_terms()[0],
    "aece": lambda scores: _mass(scores).error_terms()[0],
    "cwece": lambda scores: _class_wise(scores, by_mass=False),
    "cwaece": lambda scores: _class_wise(scores, by_mass=True),
    "mce": lambda scores: _width(scores).largest_gap_terms()[0],
    "debiased_ece": lambda scores: _width(scores).debiased_terms()[0],
    "smooth_ece": smooth_terms,
}
