"""Accuracy against calibration error, with the recipes that no other beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from orchestrator.report._svg import Plot, element, fitting, labelled

__all__ = ["Place", "pareto_front", "scatter"]

LETTER = 6.3  # Width of a letter in pixels, near enough to keep labels apart.
LINE = 13.0
RING = 8.5
FLOOR = "noise floor"
SPREAD = 6.0  # Ratio of the errors from which their axis is logarithmic.

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Place:
    """One recipe: its accuracy and error in percent, and the stage that it ends with."""

    recipe: str
    accuracy: float
    error: float
    stage: str


def pareto_front(places: Iterable[Place]) -> list[Place]:
    """Return those for which no other has at least the accuracy and at most the error.

    Of equals all stay. They are in the order of their errors.
    """
    found = list(places)

    def beaten(one: Place) -> bool:
        return any(
            other.accuracy >= one.accuracy
            and other.error <= one.error
            and (other.accuracy, other.error) != (one.accuracy, one.error)
            for other in found
        )

    return sorted((p for p in found if not beaten(p)), key=lambda p: (p.error, p.accuracy))


def scatter(
    places: Sequence[Place], baseline: str, floor: float | None, size: tuple[int, int]
) -> Markup:
    """Draw all recipes; the front is joined, and it and the baseline are named first.

    Args:
        places: At least one.
        baseline: The recipe that is marked as the baseline.
        floor: The baseline's noise floor in percent, if known.
        size: Width and height in pixels.
    """
    errors = [place.error for place in places]
    wide = min(errors) > 0 and max(errors) / min(errors) > SPREAD
    x = fitting(errors, wide)
    y = fitting([place.accuracy for place in places])
    front = pareto_front(places)
    label = "Accuracy against ECE; on the front: " + ", ".join(p.recipe for p in front)
    plot = Plot(size, x, y, label, (20, 12, 34, 44))
    _draw_floor(plot, floor)
    plot.frame(labelled(x.ticks(6)), labelled(y.ticks(5)))
    plot.text(plot.left - 38, 11, "accuracy %", class_="axis")
    plot.text(plot.right, size[1] - 3, "ECE %, lower is better", "end", "axis")
    plot.line(_steps(front), "front")
    for place in places:
        _draw_mark(plot, place, place.recipe == baseline)
    _Labels(plot, places).draw(front, baseline)
    return plot.svg("scatter")


def _draw_floor(plot: Plot, floor: float | None) -> None:
    """Shade the errors that a perfectly calibrated network would show."""
    if floor is None or floor <= plot.x.low:
        return
    end = min(floor, plot.x.high)
    plot.box((plot.x.low, end), (plot.y.low, plot.y.high), "floor")
    plot.text(plot.left + 5, plot.bottom - 6, FLOOR)


def _steps(front: Sequence[Place]) -> list[tuple[float, float]]:
    """Return the corners of the line that joins the front."""
    corners = [(front[0].error, front[0].accuracy)]
    for place in front[1:]:
        corners += [(place.error, corners[-1][1]), (place.error, place.accuracy)]
    return corners


def _draw_mark(plot: Plot, place: Place, baseline: bool) -> None:
    x, y = plot.at(place.error, place.accuracy)
    title = f"{place.recipe}: accuracy {place.accuracy:.2f} %, ECE {place.error:.2f} %"
    if baseline:
        plot.dot(place.error, place.accuracy, RING, "ring")
    shapes = {
        "refine": f"M{x - 4.6:.1f},{y:.1f}l4.6,-4.6 4.6,4.6 -4.6,4.6z",
        "calibrate": f"M{x - 4.6:.1f},{y + 3.6:.1f}l4.6,-8 4.6,8z",
    }
    if place.stage in shapes:
        path = shapes[place.stage]
        plot.add("path", element("title", title), d=path, class_=f"mark {place.stage}")
    else:
        plot.dot(place.error, place.accuracy, 4.2, "mark train", title)


class _Labels:
    """Puts names beside marks where there is room."""

    def __init__(self, plot: Plot, places: Sequence[Place]) -> None:
        self.plot, self.places = plot, places
        marks = (plot.at(place.error, place.accuracy) for place in places)
        self.taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in marks]
        end = plot.left + 5 + LETTER * len(FLOOR)
        self.taken.append((plot.left, plot.bottom - LINE - 5, end, plot.bottom))

    def draw(self, front: Sequence[Place], baseline: str) -> None:
        first = [p for p in self.places if p in front or p.recipe == baseline]
        rings = [self.plot.at(p.error, p.accuracy) for p in first if p.recipe == baseline]
        self.taken += [(x - RING, y - RING, x + RING, y + RING) for x, y in rings]
        for place in [*first, *(p for p in self.places if p not in first)]:
            self._label(place, "name strong" if place in front else "name")

    def _label(self, place: Place, class_: str) -> None:
        x, y = self.plot.at(place.error, place.accuracy)
        width = LETTER * len(place.recipe)
        away = 11.0
        candidates = (
            (x + away, y + 4, "start", x + away),
            (x - away, y + 4, "end", x - away - width),
            (x, y - away, "middle", x - width / 2),
            (x, y + away + 8, "middle", x - width / 2),
            (x + 7, y - 7, "start", x + 7),
            (x + 7, y + 15, "start", x + 7),
            (x - 7, y - 7, "end", x - 7 - width),
            (x - 7, y + 15, "end", x - 7 - width),
        )
        for across, down, anchor, left in candidates:
            box = (left, down - LINE + 3, left + width, down + 2)
            if self._free(box):
                self.taken.append(box)
                self.plot.text(across, down, place.recipe, anchor, class_)
                return

    def _free(self, box: Box) -> bool:
        left, top, right, bottom = box
        plot = self.plot
        inside = left >= plot.left and right <= plot.size[0] and top >= 0 and bottom <= plot.bottom
        return inside and not any(
            left < other[2] and right > other[0] and top < other[3] and bottom > other[1]
            for other in self.taken
        )
