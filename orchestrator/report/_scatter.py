"""Accuracy against calibration error, with the recipes that no other beats in both."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

from orchestrator.report._chart import Chart, fitting, labelled

LETTER = 6.3  # Width of a letter in pixels, near enough to keep labels apart.
LINE = 13.0
RING = 8.5
FLOOR = "noise floor"
SPREAD = 6.0  # Ratio of the errors from which their axis is logarithmic.

# Corners of the marks that are not round, around their middle.
SHAPES = {
    "refine": ((-4.6, 0.0), (0.0, -4.6), (4.6, 0.0), (0.0, 4.6)),
    "calibrate": ((-4.6, 3.6), (0.0, -4.4), (4.6, 3.6)),
}

# Where a name may stand beside its mark: how far across and down, and which end of it is there.
BESIDE = (
    (11.0, 4.0, "start"),
    (-11.0, 4.0, "end"),
    (0.0, -11.0, "middle"),
    (0.0, 19.0, "middle"),
    (7.0, -7.0, "start"),
    (7.0, 15.0, "start"),
    (-7.0, -7.0, "end"),
    (-7.0, 15.0, "end"),
)

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Place:
    """One recipe: its accuracy and error in percent, and the stage that it ends with."""

    recipe: str
    accuracy: float
    error: float
    stage: str


def unbeaten(costs: Sequence[tuple[float, ...]]) -> list[bool]:
    """Tell of each whether no other is lower somewhere and higher nowhere; of equals all stay."""
    kept, front = [False] * len(costs), list[tuple[float, ...]]()
    # Whatever beats another one comes before it in this order.
    for place in sorted(range(len(costs)), key=costs.__getitem__):
        one = costs[place]
        if not any(other != one and all(map(operator.le, other, one)) for other in front):
            kept[place] = True
            front.append(one)
    return kept


def pareto_front(places: Iterable[Place]) -> list[Place]:
    """Return those that no other beats in accuracy and error, in the order of their errors."""
    found = list(places)
    kept = compress(found, unbeaten([(place.error, -place.accuracy) for place in found]))
    return sorted(kept, key=lambda place: (place.error, place.accuracy))


def scatter(
    places: Sequence[Place], baseline: str, floor: float | None, size: tuple[int, int]
) -> Chart:
    """Draw all recipes; the front is joined, and it and the baseline are named first.

    The noise floor is the baseline's, in percent; the size is in pixels.
    """
    errors = [place.error for place in places]
    wide = min(errors) > 0 and max(errors) / min(errors) > SPREAD
    x = fitting(errors, wide)
    y = fitting([place.accuracy for place in places])
    front = pareto_front(places)
    label = "Accuracy against ECE; on the front: " + ", ".join(p.recipe for p in front)
    chart = Chart(size, x, y, label, (20, 12, 34, 44))
    if floor is not None and floor > x.low:  # What a perfectly calibrated network would show.
        chart.box((x.low, min(floor, x.high)), (y.low, y.high), "floor")
        chart.text(chart.left + 5, chart.bottom - 6, FLOOR)
    chart.frame(labelled(x.ticks(6)), labelled(y.ticks(5)))
    chart.text(chart.left - 38, 11, "accuracy %", style="axis")
    chart.text(chart.right, size[1] - 3, "ECE %, lower is better", "end", "axis")
    corners = [(front[0].error, front[0].accuracy)]
    for place in front[1:]:
        corners += [(place.error, corners[-1][1]), (place.error, place.accuracy)]
    chart.line(corners, "front")
    for place in places:
        _draw_mark(chart, place, place.recipe == baseline)
    _write_names(chart, places, front, baseline)
    return chart


def _draw_mark(chart: Chart, place: Place, baseline: bool) -> None:
    x, y = chart.at(place.error, place.accuracy)
    title = f"{place.recipe}: accuracy {place.accuracy:.2f} %, ECE {place.error:.2f} %"
    if baseline:
        chart.dot(place.error, place.accuracy, RING, "ring")
    if place.stage in SHAPES:
        corners = [(x + across, y + down) for across, down in SHAPES[place.stage]]
        chart.shape(corners, f"mark {place.stage}", title)
    else:
        chart.dot(place.error, place.accuracy, 4.2, "mark train", title)


def _write_names(
    chart: Chart, places: Sequence[Place], front: Sequence[Place], baseline: str
) -> None:
    """Write names beside marks where there is room, those of the front and the baseline first."""
    marks = {place: chart.at(place.error, place.accuracy) for place in places}
    first = [place for place in places if place in front or place.recipe == baseline]
    end = chart.left + 5 + LETTER * len(FLOOR)
    taken: list[Box] = [(chart.left, chart.bottom - LINE - 5, end, chart.bottom)]
    for place, (x, y) in marks.items():
        reach = RING if place.recipe == baseline else 5.0
        taken.append((x - reach, y - reach, x + reach, y + reach))
    for place in [*first, *(p for p in places if p not in first)]:
        width = LETTER * len(place.recipe)
        for across, down, anchor in BESIDE:
            x, y = marks[place][0] + across, marks[place][1] + down
            left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
            box = (left, y - LINE + 3, left + width, y + 2)
            if _fits(chart, box) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                style = "name strong" if place in front else "name"
                chart.text(x, y, place.recipe, anchor, style)
                break


def _fits(chart: Chart, box: Box) -> bool:
    left, top, right, bottom = box
    return left >= chart.left and right <= chart.size[0] and top >= 0 and bottom <= chart.bottom


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and one[2] > other[0] and one[1] < other[3] and one[3] > other[1]
