"""All metrics of one set of predictions, and each row's contribution to them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

from trainables.common.fields import check_choice, check_count
from trainables.common.later import Tensor, torch
from trainables.metrics._conformal import Rows, conformal_sets
from trainables.metrics._floor import NoiseFloor, noise_floors, registered_draws
from trainables.metrics._metrics import FLOORED, METRICS, SETS, Metric
from trainables.metrics._refinement import refined
from trainables.metrics._scores import (
    ArrayLike,
    Binned,
    Scores,
    class_errors,
    mass_edges,
    plugins_metric,
    probs_and_labels,
    right_spread,
    width_edges,
)
from trainables.metrics._selective import Ranked
from trainables.metrics._smooth import smooth_error, smooth_terms
from trainables.metrics._test import CalibrationTest, calibration_test


def calibration_report(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
    direction: bool = False,
    metrics: Iterable[str] | None = None,
) -> dict[str, float]:
    """Return accuracy, proper scores and calibration errors of one set of predictions.

    Softmax and sums are computed in float64, whatever the precision of the input, on its device.

    ======== =====================================================================================
    acc      Share of rows whose first largest score is the label's, in [0, 1].
    nll      Mean ``-log p_y`` in nats, in [0, inf]; infinite if a ``p_y`` is 0.
    brier    ``sum_k (p_k - [k = y])^2``, mean over rows, in [0, 2] (not divided by K).
    ece      Top-label error over equal-width bins (Guo et al. 2017), in [0, 1].
    aece     The same over equal-mass bins (Nguyen and O'Connor 2015), in [0, 1].
    cwece    Mean over all K classes of the error of ``p_k`` for ``[k = y]``, equal width (Kull et
             al. 2019; Nixon et al. 2019), in [0, 1]; it shrinks with K.
    cwaece   The same with equal mass in each class, in [0, 1].
    mce      Largest gap of a non-empty equal-width bin, in [0, 1].
    ======== =====================================================================================

    Bins are ``(a, b]``, the first one closed below, so that a probability of exactly 0 or 1 counts.
    ``probs`` are compared with edges rounded to their own precision. For ``aece`` and ``cwaece``
    equal scores share a bin, the first that ends at or above them, so that the order of rows has no
    effect; released code leaves the lowest edge open and drops the rows on it. A class that never
    occurs as a label contributes its whole confidence as error.

    A binned error is biased upwards: with 10,000 rows even a perfectly calibrated model shows an
    ``ece`` near 0.004. Do not rank methods by differences below that, and do not compare ``cwece``
    between tasks with different K or ``mce`` between small test sets (one sparse bin decides it).

    Args:
        logits: (N, K), unnormalised or log-probabilities, floating; minus infinity is allowed.
        probs: (N, K), rows summing to 1. Exactly one of ``logits`` and ``probs``.
        labels: (N,), integers in [0, K).
        bins: Number of bins of every binned metric, at least 1.
        direction: Also split ``ece`` into ``ece_over``, the part from bins whose mean confidence
            exceeds their accuracy (overconfidence), and ``ece_under``, the part from the others;
            both in [0, 1].
        metrics: Names of the metrics to compute; all by default. Without the class-wise errors,
            which sort every class, 100 classes take a twentieth of the time.

    Returns:
        The metrics by name, in the order of ``REPORTED``, then those of ``direction``. All but
        ``nll`` and ``brier`` are fractions.

    Raises:
        ValueError: If a metric is unknown, both or none of ``logits`` and ``probs`` are given,
            shapes do not fit, a label is out of range, a score is NaN or plus infinity, a row has
            only minus infinity, or ``probs`` are not probabilities.
    """
    known = {**_REPORT, **_DIRECTION} if direction else _REPORT
    names = set(known if metrics is None else metrics)
    for name in names:
        check_choice("metric", name, list(known))
    wanted = {name: metric for name, metric in known.items() if name in names}
    return _compute(wanted, Predictions(Scores(logits, probs, labels), bins))


def evaluation_report(logits: ArrayLike, labels: ArrayLike, bins: int = 15) -> dict[str, float]:
    """Return ``calibration_report`` with further errors and noise floors.

    It adds ``debiased_ece``, ``smooth_ece``, and the mean noise floors ``ece_floor``,
    ``aece_floor`` and ``cwece_floor``. All but ``nll`` and ``brier`` are fractions. For arguments
    and errors see ``calibration_report``.
    """
    return _compute(EVALUATION, Predictions(Scores(logits, None, labels), bins))


def registered_report(
    logits: ArrayLike, labels: ArrayLike, floors: bool = False
) -> dict[str, float]:
    """Return the metrics of all active plugins by name.

    Args:
        logits: (N, K), unnormalised or log-probabilities.
        labels: (N,), integers in [0, K).
        floors: Whether to add the noise floors of ``floored`` metrics, as ``NAME_floor``.
    """
    metrics = METRICS.plugged
    if not metrics:
        return {}
    rows = probs_and_labels(logits, labels)
    found = {metric.name: float(plugins_metric(metric, *rows).mean()) for metric in metrics}
    for metric in metrics if floors else ():
        if metric.floored:
            found[metric.floor().name] = float(registered_draws(metric, logits).mean())
    return found


class Predictions:
    """Checked scores of one set of predictions, with cached results that metrics share."""

    def __init__(self, scores: Scores, bins: int = 15, calibration: Rows | None = None) -> None:
        self.scores, self._calibration = scores, calibration
        self._bins = check_count("bins", bins)
        self._edges = width_edges(self._bins, scores.edge_dtype, scores.labels.device)
        self._top = scores.confidence[None], scores.correct[None]

    @cached_property
    def width(self) -> Binned:
        """Return the top-label confidences in bins of equal width."""
        return Binned(*self._top, self._edges)

    @cached_property
    def mass(self) -> Binned:
        """Return the top-label confidences in bins of equal mass."""
        return Binned(*self._top, mass_edges(self._top[0], self._bins))

    def classes(self, width: bool) -> Iterator[Binned]:
        """Yield blocks of class probabilities in bins of equal width or mass."""
        for columns, hits in self.scores.hit_columns():
            edges = self._edges if width else mass_edges(columns, self._bins)
            yield Binned(columns, hits, edges)

    @cached_property
    def by_class(self) -> Tensor:
        """Return the class-wise errors of equal width and of equal mass, (2,)."""
        return class_errors(self.scores, self._edges) / self.scores.num_classes

    @cached_property
    def ranked(self) -> Ranked:
        """Return the rows sorted by confidence."""
        return Ranked(self.scores.confidence, self.scores.correct)

    @cached_property
    def refined(self) -> dict[str, Tensor]:
        """Return the refinement and calibration terms by metric."""
        return refined(self.scores).parts(self.scores)

    @cached_property
    def sets(self) -> dict[str, Tensor]:
        """Return coverage and size of each row's conformal sets, (2, N)."""
        return conformal_sets(self.scores, self._calibration)

    @cached_property
    def tested(self) -> CalibrationTest:
        """Return the test of whether the confidence is calibrated."""
        return calibration_test(self.mass)

    @cached_property
    def floors(self) -> dict[str, NoiseFloor]:
        """Return the noise floor of each metric that has one; needs logits."""
        return noise_floors(self.scores.values, bins=self._bins)


Compute: TypeAlias = Callable[[Predictions], Tensor | float]


def _floor(name: str) -> Compute:
    return lambda found: found.floors[name].mean


_REPORT: Mapping[str, Compute] = {
    "acc": lambda found: found.scores.correct.mean(),
    "nll": lambda found: found.scores.nll.mean(),
    "brier": lambda found: found.scores.brier.mean(),
    "ece": lambda found: found.width.error(),
    "aece": lambda found: found.mass.error(),
    "cwece": lambda found: found.by_class[0],
    "cwaece": lambda found: found.by_class[1],
    "mce": lambda found: found.width.largest_gap(),
}
_DIRECTION: Mapping[str, Compute] = {
    "ece_over": lambda found: found.width.excess(),
    "ece_under": lambda found: found.width.error() - found.width.excess(),
}
EVALUATION: Mapping[str, Compute] = {
    **_REPORT,
    "debiased_ece": lambda found: found.width.debiased_error(),
    "smooth_ece": lambda found: smooth_error(found.scores),
    **{f"{name}_floor": _floor(name) for name in FLOORED},
}


def _compute(metrics: Mapping[str, Compute], predictions: Predictions) -> dict[str, float]:
    # Keep values on the device and wait once for all of them.
    device = predictions.scores.labels.device
    found = [metric(predictions) for metric in metrics.values()]
    values = [torch.as_tensor(v, dtype=torch.float64, device=device).reshape(1) for v in found]
    return dict(zip(metrics, torch.cat(values).tolist(), strict=True))


GROUPS = 50  # Number of groups of the jackknife.
OF_ROWS = ("acc", "nll", "brier")  # Means of independent values per row.


def row_terms(metric: str, logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return terms (N,), float64, whose mean is a metric.

    For proper scores and accuracy, a term is the row's own score. For a calibration error, it is
    the row's gap between score and hit, with the sign of the sum over its bin or neighbourhood: the
    linear part of the error. The standard deviation of the terms over sqrt(N) is the standard error
    of the metric by the delta method, also for the difference of two networks on the same rows. It
    is too large if a bin's gap is close to 0.

    Args:
        metric: ``acc``, a plugin's metric, or a metric that a search can minimise, except
            ``nll_after_ts``.
        logits: (N, K), unnormalised or log-probabilities.
        labels: (N,), integers in [0, K).

    Raises:
        ValueError: If the metric has no terms, or ``calibration_report`` would reject the rows.
    """
    if METRICS.code(metric) is not None:
        return _plugins_terms(METRICS[metric], logits, labels)
    check_choice("metric", metric, list(_TERMS))
    return _TERMS[metric](Predictions(Scores(logits, None, labels)))


def _plugins_terms(metric: Metric, logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return terms (N,), float64, whose mean is a plugin's metric; see ``row_terms``.

    If the plugin returns a scalar, they are pseudo-values of a jackknife over at most 50 groups of
    rows, so that their standard error is that of the jackknife; rows are assumed to be independent.
    """
    probs, truth = probs_and_labels(logits, labels)
    found = plugins_metric(metric, probs, truth)
    if found.ndim:
        return found
    count = len(truth)
    group = torch.arange(count, device=truth.device) % min(GROUPS, count)
    groups = int(group.max()) + 1
    if groups < 2:
        return found.expand(count)
    without = [plugins_metric(metric, probs[group != g], truth[group != g]) for g in range(groups)]
    pseudo = -(groups - 1) * torch.stack([each.mean() for each in without])[group]
    return found + (pseudo - pseudo.mean()) * (count / groups) ** 0.5


def rows_or_value(
    metric: str, logits: ArrayLike, labels: ArrayLike, calibration: Rows | None = None
) -> Tensor:
    """Return a value per row, (N,), float64, whose mean is a metric, or the metric itself, ().

    Metrics with a value per row can be resampled without computing them again. For metrics of
    source ``rows``, the values are terms, so that resamples are correct to first order.

    Args:
        metric: One of ``METRICS.measurable``.
        logits: (N, K), unnormalised or log-probabilities.
        labels: (N,), integers in [0, K).
        calibration: See ``column_report``.

    Raises:
        ValueError: If ``metric`` is another one, or ``calibration_report`` would reject the rows.
    """
    check_choice("metric", metric, METRICS.measurable)
    if METRICS.code(metric) is not None:
        return plugins_metric(METRICS[metric], *probs_and_labels(logits, labels))
    found = Predictions(Scores(logits, None, labels), calibration=calibration)
    if metric in OF_ROWS or metric in _COLUMNS:
        return _TERMS[metric](found)
    return torch.as_tensor(EVALUATION[metric](found), dtype=torch.float64).reshape(())


def _class_wise(found: Predictions, width: bool) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for binned in found.classes(width):
        total = total + binned.error_terms().sum(0)
    return total / found.scores.num_classes


def _worst_class(found: Predictions, name: str) -> Tensor:
    """Return the terms of the lowest coverage of any class that has rows."""
    covered, labels = found.sets[name][0], found.scores.labels
    counts = labels.bincount(minlength=found.scores.num_classes)
    means = labels.bincount(covered, found.scores.num_classes) / counts  # NaN without rows.
    worst = int(means.nan_to_num(nan=math.inf).argmin())
    return means[worst] + (labels == worst) * (covered - means[worst]) * (
        len(labels) / counts[worst]
    )


Terms: TypeAlias = Callable[[Predictions], Tensor]


def _of_sets(name: str) -> dict[str, Terms]:
    return {
        f"{name}_coverage": lambda found: found.sets[name][0],
        f"{name}_size": lambda found: found.sets[name][1],
        f"{name}_worst": lambda found: _worst_class(found, name),
    }


def _refined(name: str) -> Terms:
    return lambda found: found.refined[name]


def _share(method: Callable[[Ranked, float], Tensor], percent: int) -> Terms:
    return lambda found: method(found.ranked, percent / 100)


_COLUMNS: dict[str, Terms] = {
    "aurc": lambda found: found.ranked.aurc(),
    "e_aurc": lambda found: found.ranked.e_aurc(),
    "augrc": lambda found: found.ranked.augrc(),
    **{f"risk_{percent}": _share(Ranked.risk_at, percent) for percent in (80, 90, 95)},
    **{f"coverage_{percent}": _share(Ranked.coverage_at, percent) for percent in (1, 5)},
    "signed_ece": lambda found: found.scores.confidence - found.scores.correct,
    "ece_over": lambda found: found.width.excess_terms()[0],
    "ece_under": lambda found: found.width.error_terms()[0] - found.width.excess_terms()[0],
    **{
        f"{score}_{part}": _refined(f"{score}_{part}")
        for score in ("nll", "brier")
        for part in ("refinement", "calibration")
    },
    **{key: terms for name in SETS for key, terms in _of_sets(name).items()},
    "l2_error": lambda found: right_spread(
        found.mass.squared_terms()[0], found.mass.squared_chance()
    ),
}
"""Terms of the metrics of source ``rows`` except those of the calibration test."""


def column_report(
    logits: ArrayLike, labels: ArrayLike, names: Iterable[str], calibration: Rows | None = None
) -> dict[str, float]:
    """Return metrics of source ``rows`` by name.

    Args:
        logits: (N, K), unnormalised or log-probabilities.
        labels: (N,), integers in [0, K).
        names: The names of the metrics.
        calibration: Logits and labels of other rows for fitting the conformal thresholds; see
            ``conformal_sets``.

    Raises:
        ValueError: If ``calibration_report`` would reject the rows.
    """
    found = Predictions(Scores(logits, None, labels), calibration=calibration)
    return {
        name: float(_COLUMNS[name](found).mean())
        if name in _COLUMNS
        else float(getattr(found.tested, name.removeprefix("l2_")))
        for name in names
    }


_TERMS: Mapping[str, Terms] = {
    "acc": lambda found: found.scores.correct,
    "nll": lambda found: found.scores.nll,
    "brier": lambda found: found.scores.brier,
    "ece": lambda found: found.width.error_terms()[0],
    "aece": lambda found: found.mass.error_terms()[0],
    "cwece": lambda found: _class_wise(found, width=True),
    "cwaece": lambda found: _class_wise(found, width=False),
    "mce": lambda found: found.width.largest_gap_terms()[0],
    "debiased_ece": lambda found: found.width.debiased_terms()[0],
    "smooth_ece": lambda found: smooth_terms(found.scores),
    **_COLUMNS,
}
