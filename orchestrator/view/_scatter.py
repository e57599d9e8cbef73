"""Accuracy against calibration error, with the Pareto front of recipes."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from trainables.charts.chart import (
    ZOOM,
    Chart,
    Spec,
    amount,
    drawn,
    layer,
    names,
    spread_widely,
    tips,
)

SPREAD = 6.0  # The axis is logarithmic if errors are above 0 and differ by more than this factor.
STAGES = {
    "train": ("circle", "var(--blue)"),
    "refine": ("diamond", "var(--orange)"),
    "calibrate": ("triangle-up", "var(--green)"),
}


@dataclass(frozen=True)
class Place:
    """One recipe: its accuracy and error in percent, and its last stage."""

    recipe: str
    accuracy: float
    error: float
    stage: str


def unbeaten(costs: Sequence[tuple[float, ...]]) -> list[bool]:
    """Return for each cost whether no other cost dominates it; equal costs do not dominate."""
    kept, front = [False] * len(costs), list[tuple[float, ...]]()
    # In this order each cost comes after those that dominate it.
    for place in sorted(range(len(costs)), key=costs.__getitem__):
        one = costs[place]
        if not any(other != one and all(map(operator.le, other, one)) for other in front):
            kept[place] = True
            front.append(one)
    return kept


def pareto_front(places: Iterable[Place]) -> list[Place]:
    """Return the places that no other dominates in accuracy and error, sorted by error."""
    found = list(places)
    kept = compress(found, unbeaten([(place.error, -place.accuracy) for place in found]))
    return sorted(kept, key=lambda place: (place.error, place.accuracy))


def scatter(places: Sequence[Place], baseline: str, floor: float | None) -> Chart:
    """Return the chart of all recipes, with the Pareto front as a line.

    The baseline and the recipes on the front are labelled. ``floor`` is the baseline's noise floor
    in percent.
    """
    errors = [place.error for place in places]
    log = spread_widely(errors, SPREAD)
    x = amount("error", "ECE %, lower is better", log=log, scale={"padding": 40})
    y = amount("accuracy", "accuracy %", scale={"padding": 25})
    front = pareto_front(places)
    at = {"x": x, "y": y}
    kinds, looks = list(STAGES), list(zip(*STAGES.values(), strict=True))
    shown = {
        "shape": names("stage", "stage", scale={"domain": kinds, "range": looks[0]}),
        "color": names("stage", "stage", scale={"domain": kinds, "range": looks[1]}),
        "tooltip": tips(recipe="recipe", at_accuracy="accuracy", at_error="ECE"),
    }
    named = [*front, *(p for p in places if p.recipe == baseline and p not in front)]
    ring = [_row(place) for place in places if place.recipe == baseline]
    layers = [
        *_floor(floor, errors, x),
        layer("front", "line", at, [*map(_row, front)], tone="soft", interpolate="step-after"),
        layer("ring", "point", at, ring, size=260, tone="ink"),
        layer("mark", "point", {**at, **shown}, params=[ZOOM], size=70, filled=True, opacity=1),
        # Names on the front are alternately above and below it, so that they do not overlap.
        _names("above", at, named[::2], dy=-13),
        _names("below", at, named[1::2], dy=15),
    ]
    label = "Accuracy against ECE; on the front: " + ", ".join(p.recipe for p in front)
    return drawn("", label, layers, [*map(_row, places)], height=430)


def _names(name: str, at: Spec, places: Iterable[Place], **looks: Any) -> Spec:
    shown = {**at, "text": {"field": "recipe", "type": "nominal"}}
    return layer(name, "text", shown, [*map(_row, places)], **looks)


def _floor(floor: float | None, errors: Sequence[float], x: Spec) -> list[Spec]:
    """Return the layers that shade errors below the noise floor; none if no error is below it."""
    if floor is None or floor < min(errors):
        return []
    rows = [{"error": min(floor, max(errors)), "text": "noise floor"}]
    words = {"x": {"value": 5}, "y": {"value": "height"}, "text": {"field": "text"}}
    return [
        layer("floor", "rect", {"x": x, "x2": {"value": 0}}, rows, tone="faint"),
        layer("words", "text", words, rows, tone="soft", align="left", dy=-8),
    ]


def _row(place: Place) -> dict[str, Any]:
    texts = {"at_accuracy": f"{place.accuracy:.2f} %", "at_error": f"{place.error:.2f} %"}
    return {**vars(place), **texts}
