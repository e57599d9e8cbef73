"""Reliability diagrams."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.charts.chart import Chart, Spec, amount, drawn, layer
from trainables.metrics import ReliabilityCurve

STRIP = 0.2  # Height of the strip below the diagram for shares of rows, in units of accuracy.
TICKS = {"values": [0, 0.2, 0.4, 0.6, 0.8, 1]}
TIPS = [
    {"field": "confidence", "title": "mean confidence", "format": ".3f"},
    {"field": "accuracy", "title": "accuracy", "format": ".3f"},
    {"field": "count", "title": "rows", "format": ","},
    {"field": "share", "title": "share of rows", "format": ".1%"},
]

Band = tuple[NDArray[np.float64], NDArray[np.float64]]


def reliability_diagram(
    curve: ReliabilityCurve,
    title: str = "",
    chance: Band | None = None,
    addresses: Sequence[str] = (),
) -> Chart:
    """Return a chart with accuracy, mean confidence and share of rows of each bin that has rows.

    The bar of a bin is orange if its accuracy is below its confidence, else blue.

    Args:
        curve: The bins.
        title: Title of the chart.
        chance: Lower and upper accuracies, (bins,) each, between which a grey box is drawn.
        addresses: Pages to which the bins link, one per bin; empty for no links.
    """
    filled = list(map(int, np.flatnonzero(curve.count)))
    rows = [_row(curve, index, chance) for index in filled]
    links = {"href": {"field": "address"}} if addresses else {}
    if addresses:
        rows = [{**row, "address": addresses[i]} for row, i in zip(rows, filled, strict=True)]
    x = amount("low", "confidence", scale=_span(0), axis=TICKS)
    y = amount("accuracy", "accuracy", scale=_span(-STRIP), axis=TICKS)
    bins, tone = {"x": x, "x2": {"field": "high"}}, {"field": "tone", "scale": None}
    bar = {**bins, "y": y, "y2": {"datum": 0}, "color": tone}
    ideal = {**bins, "y": y, "y2": {"field": "end"}}
    mean = {**bins, "y": {**y, "field": "confidence"}}
    diagonal = [{"low": 0, "accuracy": 0, "high": 1, "end": 1}]
    layers = [
        layer("bar", "rect", bar, opacity=0.75, stroke="var(--paper)"),
        layer("share", "rect", {**bins, **_ends("floor", "bottom")}, tone="reference"),
        layer("diagonal", "rule", ideal, diagonal, tone="soft", strokeDash=[4, 3]),
        layer("confidence", "rule", mean, tone="ink", size=2),
        layer("bin", "rect", {**bins, **links, "tooltip": TIPS}, color="transparent"),
    ]
    if chance is not None:
        box = {**bins, **_ends("least", "most")}
        layers.insert(1, layer("chance", "rect", box, tone="ink", opacity=0.16))
    error = f"error {100 * curve.error:.2f} %"
    label = f"{f'{title}: ' * bool(title)}accuracy against confidence, {error}"
    return drawn(title, label, layers, rows, height=300, text=error)


def _ends(one: str, other: str) -> Spec:
    return {"y": {"field": one, "type": "quantitative"}, "y2": {"field": other}}


def _span(low: float) -> Spec:
    return {"domain": [low, 1], "padding": 0}


def _row(curve: ReliabilityCurve, index: int, chance: Band | None) -> dict[str, Any]:
    confidence, accuracy = float(curve.confidence[index]), float(curve.accuracy[index])
    share = float(curve.count[index] / curve.count.sum())
    ends = zip(("least", "most"), chance or (), strict=False)
    return {
        **{"low": float(curve.edges[index]), "high": float(curve.edges[index + 1])},
        **{"confidence": confidence, "accuracy": accuracy, "count": int(curve.count[index])},
        **{"share": share, "floor": -STRIP, "bottom": STRIP * (share - 1)},
        **{name: float(values[index]) for name, values in ends},
        "tone": "var(--orange)" if accuracy < confidence else "var(--blue)",
    }
