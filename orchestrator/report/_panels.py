"""The charts of one recipe's predictions: reliability, risk and coverage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from orchestrator.report._svg import Axis, Plot, thinned
from trainables.metrics import ReliabilityCurve, RiskCoverageCurve

__all__ = ["reliability_panel", "risk_panel"]

UNIT = Axis(0.0, 1.0)
THIRDS = ((0.0, "0"), (0.5, "0.5"), (1.0, "1"))
SHARES = 22  # Height of the strip of counts below a reliability diagram, in pixels.
FEWEST = 10  # Rows kept at the left end of a risk-coverage curve; fewer jump about.


def reliability_panel(curve: ReliabilityCurve, recipe: str, seeds: int) -> Markup:
    """Draw accuracy over confidence, against what chance alone would show.

    Args:
        curve: Of the rows of all seeds together.
        recipe: Named for screen readers.
        seeds: How many times each row was counted.
    """
    label = f"{recipe}: accuracy against confidence, error {100 * curve.error:.2f} %"
    plot = Plot((168, 168 + SHARES + 6), UNIT, UNIT, label, (4, 6, 16 + SHARES + 6, 22))
    plot.frame((), THIRDS)
    plot.line(((0, 0), (1, 1)), "diagonal")
    for index in np.flatnonzero(curve.count):
        _draw_bin(plot, curve, int(index), seeds)
    _draw_shares(plot, curve)
    for place, text in THIRDS:
        plot.text(plot.at(place, 0)[0], plot.size[1] - 2, text, "middle")
    return plot.svg("panel")


def _draw_bin(plot: Plot, curve: ReliabilityCurve, index: int, seeds: int) -> None:
    ends = (float(curve.edges[index]), float(curve.edges[index + 1]))
    confidence, accuracy = float(curve.confidence[index]), float(curve.accuracy[index])
    rows = max(round(curve.count[index] / seeds), 1)
    plot.box(ends, _chance(confidence, rows), "chance")
    kind = "over" if accuracy < confidence else "under"
    plot.line(((confidence, confidence), (confidence, accuracy)), f"gap {kind}")
    share = float(curve.count[index] / curve.count.sum())
    title = f"confidence {confidence:.3f}, accuracy {accuracy:.3f}, {100 * share:.1f} % of rows"
    plot.dot(confidence, accuracy, 1.6 + 2.6 * share**0.5, f"dot {kind}", title)


def _chance(probability: float, rows: int) -> tuple[float, float]:
    """Return where 95% of the accuracies of so many rows lie that are right so often."""
    from scipy.stats import binom

    share = min(probability, 1.0)
    return float(binom.ppf(0.025, rows, share)) / rows, float(binom.ppf(0.975, rows, share)) / rows


def _draw_shares(plot: Plot, curve: ReliabilityCurve) -> None:
    floor = plot.bottom + SHARES + 3
    shares = curve.count / curve.count.sum()
    for left, right, share in zip(curve.edges[:-1], curve.edges[1:], shares, strict=True):
        if share:
            start, end = plot.at(float(left), 0)[0], plot.at(float(right), 0)[0]
            height = max(SHARES * float(share), 0.6)
            plot.add(
                "rect",
                x=start + 0.4,
                y=floor - height,
                width=end - start - 0.8,
                height=height,
                class_="share",
            )


def risk_panel(
    curves: Sequence[RiskCoverageCurve],
    baseline: Sequence[RiskCoverageCurve],
    highest: float,
    recipe: str,
) -> Markup:
    """Draw the error among the most confident rows, the baseline's in grey.

    Args:
        curves: One a seed.
        baseline: Likewise; none if this is the baseline.
        highest: Risk at the upper end of the axis, the same for all panels.
        recipe: Named for screen readers.
    """
    label = f"{recipe}: error of the most confident rows against their share"
    plot = Plot((168, 130), UNIT, Axis(0.0, highest), label, (4, 8, 16, 30))
    ticks = Axis(0.0, 100 * highest).ticks(3)
    plot.frame(((0, "0"), (0.5, "50"), (1, "100 %")), ((t / 100, f"{t:g} %") for t in ticks))
    if baseline:
        plot.line(_mean_risk(baseline, highest), "reference")
    plot.line(_mean_risk(curves, highest), "ours")
    return plot.svg("panel")


def _mean_risk(curves: Sequence[RiskCoverageCurve], highest: float) -> list[tuple[float, float]]:
    """Return the mean over seeds; what does not fit on the axis runs along its edge."""
    coverage = curves[0].coverage
    risk = np.minimum(np.mean([curve.risk for curve in curves], axis=0), highest)
    places = thinned(range(min(FEWEST, len(risk)) - 1, len(risk)))
    return [(float(coverage[place]), float(risk[place])) for place in places]
