"""Computes figures and charts of one task from its stored predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.statistics import (
    Difference,
    KeptPredictions,
    StoredPredictions,
    TaskComparison,
    compare,
    search_gains,
)
from orchestrator.storage.results import StudyResult
from orchestrator.tables.figures import percent
from trainables.charts.chart import Chart, amount, curves, drawn, layer, thinned
from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch
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
FEWEST = 10  # Rows at the left end of a risk-coverage curve; with fewer it is too noisy.
TONES = {"reference": "var(--reference)", "ours": "var(--blue)"}
NORMAL = 1.96  # Standard errors of a 95 % interval.
FAR = 3.0  # Intervals that reach further from 0 than this multiple of the median are cut off.


@dataclass(frozen=True)
class Curves:
    """The curves of one recipe.

    Attributes:
        reliability: Reliability curve over the rows of all seeds.
        risk: Risk-coverage curves, one per seed.
        error: Estimated true calibration error, the mean over seeds; see ``estimated_error``.
        spread: Standard error of accuracy minus confidence in each bin, (bins,), if rows are
            pixels; else None.
    """

    reliability: ReliabilityCurve
    risk: tuple[RiskCoverageCurve, ...]
    error: float
    spread: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Measured:
    """The measurements of one task.

    Attributes:
        curves: Curves by recipe.
        comparisons: Differences from the baseline, by metric; empty if it has no curves.
        gains: Gains of the searched configurations over the published defaults, by metric; empty if
            there are none.
        absent: Maps a recipe to the reason why it has no curves.
        ungained: Maps a recipe to the reason why its gain is unknown, such as a missing file.
        problem: Why nothing could be measured; else empty.
    """

    curves: dict[str, Curves] = field(default_factory=dict)
    comparisons: dict[str, TaskComparison] = field(default_factory=dict)
    gains: dict[str, TaskComparison] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    ungained: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def measure(
    results: Sequence[StudyResult],
    store: ArtifactStore,
    baseline: str,
    done: Callable[[], None] = lambda: None,
) -> Measured:
    """Read the predictions of one task and compute the curves and differences of the page.

    Recipes with damaged predictions are named in the result and left out. If the predictions are of
    different rows, nothing is measured, and ``problem`` says why. ``done`` is called when a recipe
    has been read, and when it has been compared by a metric.
    """
    kept = KeptPredictions(store)
    lost = {r.recipe: why for r in results if (why := kept.lost(r.sweep, *r.predictions))}
    ungained = {r.recipe: why for r in results if (why := _lost_pair(r, kept))}
    there = [result for result in results if result.recipe not in lost]
    paired = [result for result in results if result.recipe not in ungained]
    try:
        predictions = StoredPredictions(there, kept)
        curves = {}
        for recipe, seeds in predictions.items():
            curves[recipe] = _curves(seeds, predictions.truths, predictions.images)
            done()
        comparisons = {
            metric: compare(there, kept, metric, baseline=baseline, done=lambda recipe: done())
            for metric in (COMPARED if baseline in curves else ())
        }
        gains = {metric: search_gains(paired, kept, metric) for metric in COMPARED}
    except InputError as error:
        return Measured(problem=str(error))
    known = {metric: found for metric, found in gains.items() if found.bootstrap.differences}
    return Measured(curves, comparisons, known, predictions.absent | lost, ungained)


def _lost_pair(result: StudyResult, kept: KeptPredictions) -> str:
    pair = (result.searched_predictions, result.default_predictions)
    return kept.lost(result.sweep, *pair) if all(pair) else ""


def _curves(seeds: tuple[Tensor, ...], labels: Sequence[Tensor], images: Tensor | None) -> Curves:
    each = list(zip(seeds, labels, strict=False))
    rows, truths = (torch.cat(parts) for parts in zip(*each, strict=True))
    spread = None
    if images is not None:
        spread = bin_spread_of_groups(rows, truths, images.repeat(len(seeds)))
    risk = tuple(risk_coverage_curve(logits=seed, labels=truth) for seed, truth in each)
    error = fmean(estimated_error(logits=seed, labels=truth) for seed, truth in each)
    return Curves(reliability_curve(logits=rows, labels=truths), risk, error, spread)


def chance(curves: Curves) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the 95 % range of each bin's accuracy for perfectly calibrated confidences."""
    curve = curves.reliability
    probability = np.clip(np.nan_to_num(curve.confidence), 1e-12, 1.0)  # ``bdtrik`` is NaN at 0.
    if curves.spread is not None:
        reach = NORMAL * curves.spread
        return np.maximum(0.0, probability - reach), np.minimum(1.0, probability + reach)
    from scipy.special import bdtrik  # scipy.stats takes two seconds to import.

    # Each row was counted once per seed.
    rows = np.maximum(np.round(curve.count / len(curves.risk)), 1)
    low, high = (np.ceil(bdtrik(end, rows, probability)) / rows for end in (0.025, 0.975))
    return low, high


def risk_panel(
    own: Sequence[RiskCoverageCurve],
    baseline: Sequence[RiskCoverageCurve],
    highest: float,
    recipe: str,
) -> Chart:
    """Return the chart of the error among the most confident rows, with the baseline in grey."""
    label = f"{recipe}: error of the most confident rows against their share"
    ticks = {"format": "%", "tickCount": 4}
    x = amount("coverage", "share of rows, most confident first", axis=ticks)
    y = amount("risk", "error", axis=ticks, scale={"domain": [0, highest], "padding": 0})
    tip = [
        {"field": "coverage", "title": "share of rows", "format": ".1%"},
        {"field": "risk", "title": "error", "format": ".2%"},
    ]
    lines = {"reference": baseline, "ours": own}
    layers = [
        layer(
            name,
            "line",
            {"x": x, "y": y, "tooltip": tip},
            [_mean_risk(found, highest)],
            transform=curves("coverage", "risk"),
            color=TONES[name],
            point="transparent",
        )
        for name, found in lines.items()
        if found
    ]
    area = fmean(curve.area for curve in own)
    return drawn(recipe, label, layers, height=200, text=f"area {percent(area)} %")


def _mean_risk(own: Sequence[RiskCoverageCurve], highest: float) -> dict[str, list[float]]:
    """Return the points of the mean curve over seeds; errors are clipped to ``highest``."""
    coverage = own[0].coverage
    risk = np.minimum(np.mean([curve.risk for curve in own], axis=0), highest)
    places = thinned(range(min(FEWEST, len(risk)) - 1, len(risk)))
    return {"coverage": coverage[places].tolist(), "risk": risk[places].tolist()}


def widest(comparison: TaskComparison) -> float:
    """Return the difference at the edges of the interval drawings in a column."""
    differences = comparison.bootstrap.differences.values()
    found = (max(abs(difference.low), abs(difference.high)) for difference in differences)
    ends = [end for end in found if end]  # A default that was kept has no interval.
    return min(max(ends), FAR * median(ends)) * 1.05 if ends else 1.0


class IntervalBar(NamedTuple):
    """The drawing of a difference and its interval, from 0 (left) to 100 (right).

    Attributes:
        low, high: Ends of the bar.
        value: Position of the dot; None if it does not fit.
        cut: Sides on which the interval is cut off.
    """

    low: float
    high: float
    value: float | None
    cut: tuple[str, ...]


def interval_bar(found: Difference, limit: float) -> IntervalBar:
    """Return the positions of a difference and its interval; 0 is at 50, ``limit`` at 100."""
    ends = (max(-limit, min(limit, end)) for end in (found.low, found.high, found.value))
    low, high, value = (50 + 50 * end / limit for end in ends)
    sides = {"left": -found.low, "right": found.high}
    cut = tuple(side for side, end in sides.items() if end > limit)
    return IntervalBar(low, high, value if abs(found.value) <= limit else None, cut)
