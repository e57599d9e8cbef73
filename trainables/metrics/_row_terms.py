"""What each row adds to a metric, so that two networks can be compared row by row."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trainables.common.checks import check_choice
from trainables.metrics._metrics import METRICS
from trainables.metrics._registered import registered_terms, registered_value
from trainables.metrics._report import EVALUATION, Predictions
from trainables.metrics._scores import ArrayLike, Scores
from trainables.metrics._smooth import smooth_terms

OF_ROWS = ("acc", "nll", "brier")  # Means of what each row has by itself.


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
    check_choice("metric", metric, list(_TERMS))
    return _TERMS[metric](Predictions(Scores(logits, None, labels)))


def rows_or_value(metric: str, logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return a value for each row, (N,), float64, whose mean is a metric, or the metric, ().

    Which of both is a property of the metric: the first is resampled without computing it again.

    Args:
        metric: One of ``METRICS.measurable``.
        logits: (N, K), unnormalised or log-probabilities.
        labels: (N,), integers in [0, K).

    Raises:
        ValueError: If it is another metric, or the rows are not as ``calibration_report`` wants
            them.
    """
    check_choice("metric", metric, METRICS.measurable)
    if METRICS.code(metric) is not None:
        return registered_value(METRICS[metric], logits, labels)
    found = Predictions(Scores(logits, None, labels))
    if metric in OF_ROWS:
        return _TERMS[metric](found)
    return torch.as_tensor(EVALUATION[metric](found), dtype=torch.float64).reshape(())


def _class_wise(found: Predictions, place: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for pair in found.classes():
        total = total + pair[place].error_terms().sum(0)
    return total / found.scores.num_classes


_TERMS: Mapping[str, Callable[[Predictions], Tensor]] = {
    "acc": lambda found: found.scores.correct,
    "nll": lambda found: found.scores.nll,
    "brier": lambda found: found.scores.brier,
    "ece": lambda found: found.width.error_terms()[0],
    "aece": lambda found: found.mass.error_terms()[0],
    "cwece": lambda found: _class_wise(found, 0),
    "cwaece": lambda found: _class_wise(found, 1),
    "mce": lambda found: found.width.largest_gap_terms()[0],
    "debiased_ece": lambda found: found.width.debiased_terms()[0],
    "smooth_ece": lambda found: smooth_terms(found.scores),
}
