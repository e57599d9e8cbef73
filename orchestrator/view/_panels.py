"""Figures of one task from its stored predictions, and the charts of each recipe."""

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
FEWEST = 10  # Rows kept at the left end of a risk-coverage curve; fewer jump about.
TONES = {"reference": "var(--reference)", "ours": "var(--blue)"}
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


def chance(curves: Curves) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
    own: Sequence[RiskCoverageCurve],
    baseline: Sequence[RiskCoverageCurve],
    highest: float,
    recipe: str,
) -> Chart:
    """Return the error among the most confident rows, the baseline's in grey, per seed."""
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
    """Return the mean over seeds; what does not fit on the axis runs along its edge."""
    coverage = own[0].coverage
    risk = np.minimum(np.mean([curve.risk for curve in own], axis=0), highest)
    places = thinned(range(min(FEWEST, len(risk)) - 1, len(risk)))
    return {"coverage": coverage[places].tolist(), "risk": risk[places].tolist()}


def widest(comparison: TaskComparison) -> float:
    """Return the difference at the edges of the intervals of one column."""
    differences = comparison.bootstrap.differences.values()
    found = (max(abs(difference.low), abs(difference.high)) for difference in differences)
    ends = [end for end in found if end]  # A default that was kept has no interval.
    return min(max(ends), FAR * median(ends)) * 1.05 if ends else 1.0


class IntervalBar(NamedTuple):
    """A difference and its interval in a cell, from 0 at the left end to 100 at the right one.

    Attributes:
        low, high: Ends of the bar.
        value: Place of the dot; None if it does not fit.
        cut: Sides on which the interval extends beyond the cell.
    """

    low: float
    high: float
    value: float | None
    cut: tuple[str, ...]


def interval_bar(found: Difference, limit: float) -> IntervalBar:
    """Return the places of a difference and its interval around zero, which is at 50."""
    ends = (max(-limit, min(limit, end)) for end in (found.low, found.high, found.value))
    low, high, value = (50 + 50 * end / limit for end in ends)
    sides = {"left": -found.low, "right": found.high}
    cut = tuple(side for side, end in sides.items() if end > limit)
    return IntervalBar(low, high, value if abs(found.value) <= limit else None, cut)
