"""Figures of one task from its stored predictions, and the charts of each recipe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestrator.report._chart import Axis, Chart, thinned
from orchestrator.statistics import (
    Difference,
    KeptPredictions,
    StoredPredictions,
    TaskComparison,
    compare,
    search_gains,
)
from orchestrator.storage.results import StudyResult
from trainables.common.errors import InputError
from trainables.metrics import (
    ReliabilityCurve,
    RiskCoverageCurve,
    bin_spread_of_groups,
    estimated_error,
    reliability_curve,
    risk_coverage_curve,
)
from trainables.store.artifacts import ArtifactStore

COMPARED = ("acc", "ece")  # Metrics that are compared with the baseline.
UNIT = Axis(0.0, 1.0)
THIRDS = ((0.0, "0"), (0.5, "0.5"), (1.0, "1"))
SHARES = 22  # Height of the strip of counts below a reliability diagram, in pixels.
FEWEST = 10  # Rows kept at the left end of a risk-coverage curve; fewer jump about.
INTERVAL = (90, 16)
NORMAL = 1.96  # Standard errors within which 95 % lie.
FAR = 3.0  # How many times the usual reach of an interval still fits; others are cut off.


@dataclass(frozen=True)
class Curves:
    """One recipe's.

    Attributes:
        reliability: Of the rows of all seeds together.
        risk: One a seed.
        error: Estimated true calibration error, the mean over seeds; see ``estimated_error``.
        spread: Standard error of each bin's accuracy where rows are pixels, (bins,); else None.
    """

    reliability: ReliabilityCurve
    risk: tuple[RiskCoverageCurve, ...]
    error: float
    spread: NDArray[np.float64] | None = None

    @property
    def area(self) -> float:
        """Area under the risk-coverage curve, the mean over seeds."""
        return fmean(curve.area for curve in self.risk)


@dataclass(frozen=True)
class Measured:
    """One task.

    Attributes:
        curves: Recipe to its curves.
        comparisons: Metric to the differences from the baseline; empty without a baseline.
        gains: Metric to what the searches brought; empty where none did, or it is not known.
        absent: Recipe to the reason why it has no curves.
        problem: Why there is nothing at all; else empty.
    """

    curves: dict[str, Curves] = field(default_factory=dict)
    comparisons: dict[str, TaskComparison] = field(default_factory=dict)
    gains: dict[str, TaskComparison] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def measure(
    results: Sequence[StudyResult],
    store: ArtifactStore,
    baseline: str,
    done: Callable[[], None] = lambda: None,
) -> Measured:
    """Read the predictions of one task and compute what the page draws.

    Predictions that are damaged, or of different rows, are told on the page: a report of the
    rest is better than none. ``done`` is called once a recipe has been read, and for each of
    ``COMPARED`` once it has been compared.
    """
    kept = KeptPredictions(store)
    try:
        predictions = StoredPredictions(results, kept)
        curves = {}
        for recipe, seeds in predictions.items():
            curves[recipe] = _curves(seeds, predictions.truths, predictions.images)
            done()
        comparisons = {
            metric: compare(results, kept, metric, baseline=baseline, done=lambda recipe: done())
            for metric in (COMPARED if baseline in curves else ())
        }
        gains = {metric: search_gains(results, kept, metric) for metric in COMPARED}
    except InputError as error:
        return Measured(problem=str(error))
    known = {metric: found for metric, found in gains.items() if found.bootstrap.differences}
    return Measured(curves, comparisons, known, predictions.absent)


def _curves(seeds: tuple[Tensor, ...], labels: Sequence[Tensor], images: Tensor | None) -> Curves:
    each = list(zip(seeds, labels, strict=False))
    rows, truths = (torch.cat(parts) for parts in zip(*each, strict=True))
    spread = None
    if images is not None:
        spread = bin_spread_of_groups(rows, truths, images.repeat(len(seeds)))
    risk = tuple(risk_coverage_curve(logits=seed, labels=truth) for seed, truth in each)
    error = fmean(estimated_error(logits=seed, labels=truth) for seed, truth in each)
    return Curves(reliability_curve(logits=rows, labels=truths), risk, error, spread)


def reliability_panel(curves: Curves, recipe: str) -> Chart:
    """Draw accuracy over confidence, against what chance alone would show."""
    curve = curves.reliability
    label = f"{recipe}: accuracy against confidence, error {100 * curve.error:.2f} %"
    chart = Chart((168, 168 + SHARES + 6), UNIT, UNIT, label, (4, 6, 16 + SHARES + 6, 22))
    chart.frame((), THIRDS)
    chart.line(((0, 0), (1, 1)), "diagonal")
    chance = np.stack(_chance(curves), axis=1).tolist()
    floor, shares = chart.bottom + SHARES + 3, []
    for index in map(int, np.flatnonzero(curve.count)):
        low, high = float(curve.edges[index]), float(curve.edges[index + 1])
        confidence, accuracy = float(curve.confidence[index]), float(curve.accuracy[index])
        chart.box((low, high), chance[index], "chance")
        kind = "over" if accuracy < confidence else "under"
        chart.line(((confidence, confidence), (confidence, accuracy)), f"gap {kind}")
        share = float(curve.count[index] / curve.count.sum())
        title = f"confidence {confidence:.3f}, accuracy {accuracy:.3f}, {100 * share:.1f} % of all"
        chart.dot(confidence, accuracy, 1.6 + 2.6 * share**0.5, f"dot {kind}", title)
        left, right = chart.at(low, 0)[0] + 0.4, chart.at(high, 0)[0] - 0.4
        top = floor - max(SHARES * share, 0.6)
        shares.append(((left, top), (right, top), (right, floor), (left, floor)))
    for corners in shares:
        chart.shape(corners, "share")
    for place, text in THIRDS:
        chart.text(chart.at(place, 0)[0], chart.size[1] - 2, text, "middle")
    return chart


def _chance(curves: Curves) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where 95 % of the accuracies of each bin would lie if its confidence were right."""
    curve = curves.reliability
    probability = np.clip(np.nan_to_num(curve.confidence), 1e-12, 1.0)  # Of 0 nothing is told.
    if curves.spread is not None:
        reach = NORMAL * curves.spread
        return np.maximum(0.0, probability - reach), np.minimum(1.0, probability + reach)
    from scipy.special import bdtrik  # scipy.stats takes two seconds to import.

    # Each row was counted once a seed.
    rows = np.maximum(np.round(curve.count / len(curves.risk)), 1)
    low, high = (np.ceil(bdtrik(end, rows, probability)) / rows for end in (0.025, 0.975))
    return low, high


def risk_panel(
    curves: Sequence[RiskCoverageCurve],
    baseline: Sequence[RiskCoverageCurve],
    highest: float,
    recipe: str,
) -> Chart:
    """Draw the error among the most confident rows, the baseline's in grey; one curve is of a seed.

    The highest risk is at the upper end of the axis, the same for all panels.
    """
    label = f"{recipe}: error of the most confident rows against their share"
    chart = Chart((168, 130), UNIT, Axis(0.0, highest), label, (4, 8, 16, 30))
    ticks = Axis(0.0, 100 * highest).ticks(3)
    chart.frame(((0, "0"), (0.5, "50"), (1, "100 %")), ((t / 100, f"{t:g} %") for t in ticks))
    if baseline:
        chart.line(_mean_risk(baseline, highest), "reference")
    chart.line(_mean_risk(curves, highest), "ours")
    return chart


def _mean_risk(curves: Sequence[RiskCoverageCurve], highest: float) -> list[tuple[float, float]]:
    """Return the mean over seeds; what does not fit on the axis runs along its edge."""
    coverage = curves[0].coverage
    risk = np.minimum(np.mean([curve.risk for curve in curves], axis=0), highest)
    places = thinned(range(min(FEWEST, len(risk)) - 1, len(risk)))
    return [(float(coverage[place]), float(risk[place])) for place in places]


def widest(comparison: TaskComparison) -> float:
    """Return the difference at the edges of the intervals of one column."""
    differences = comparison.bootstrap.differences.values()
    found = (max(abs(difference.low), abs(difference.high)) for difference in differences)
    ends = [end for end in found if end]  # A default that was kept has no interval.
    return min(max(ends), FAR * median(ends)) * 1.05 if ends else 1.0


def interval_chart(found: Difference, limit: float) -> Chart:
    """Draw a difference and its interval around zero; an arrow where they extend beyond ±limit."""
    chart = Chart(INTERVAL, Axis(-limit, limit), Axis(-1.0, 1.0), "", (1, 6, 1, 6))
    low, high, value = (max(-limit, min(limit, v)) for v in (found.low, found.high, found.value))
    chart.line(((0, -1), (0, 1)), "zero")
    chart.line(((low, 0), (high, 0)))
    if value == found.value:
        chart.dot(value, 0, 3, "")
    for side, end in ((-1, -found.low), (1, found.high)):
        if end > limit:
            tip, level = INTERVAL[0] / 2 + side * (INTERVAL[0] / 2 - 0.5), INTERVAL[1] / 2
            base = tip - 6 * side
            chart.shape(((tip, level), (base, level - 4), (base, level + 4)), "")
    return chart
