"""Small charts: their marks and places, in pixels.

A chart is data. The template ``charts.html`` writes it as SVG, whose colours follow the theme.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Point = tuple[float, float]

POINTS = 100  # Most points of a curve: more cannot be told apart at these sizes.
WIDE = 20.0  # Ratio of the largest to the smallest value from which an axis is logarithmic.
ENOUGH = 3  # Ticks of a logarithmic axis; with fewer there are others between powers of ten.


class Axis(NamedTuple):
    """What an axis spans."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high end."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)

    def ticks(self, count: int = 4) -> list[float]:
        """Return at most about ``count`` round values inside."""
        if not self.log:
            rough = (self.high - self.low) / count
            power = 10.0 ** math.floor(math.log10(rough))
            step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= 0.8 * rough)
            ends = math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1
            return [number * step for number in range(*ends)]
        found: list[float] = []
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5)):
            if len(found) < ENOUGH:
                values = (factor * 10.0**power for power, factor in product(powers, factors))
                found = [value for value in values if self.low <= value <= self.high]
        return found


def fitting(values: Iterable[float], log: bool | None = None, margin: float = 0.06) -> Axis:
    """Return an axis that holds all values, finite, with a share of the span as room at its ends.

    It is logarithmic if asked for, or by default if the values are positive and lie far apart.
    """
    found = list(values)
    low, high = min(found), max(found)
    if log is None:
        log = low > 0 and high / low > WIDE
    if log:
        room = (high / low) ** margin if high > low else 2.0
        return Axis(low / room, high * room, True)
    room = margin * (high - low) or abs(high) * 0.1 or 1.0
    return Axis(low - room, high + room)


def thinned(points: Sequence[T], most: int = POINTS) -> list[T]:
    """Return at most so many of a sequence, evenly chosen, both ends among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


class Mark(NamedTuple):
    """One mark of a chart.

    Attributes:
        tag: ``polyline``, ``polygon``, ``circle`` or ``text``.
        points: Pixels from the upper left corner; one point for a circle or a text.
        style: Classes of the style sheet.
        text: The words of a text; of any other mark, what pointing at it tells.
        colour: Hexadecimal, for the styles that leave the colour open.
        radius: Of a circle, in pixels.
        anchor: Of a text: ``start``, ``middle`` or ``end``.
    """

    tag: str
    points: Sequence[Point]
    style: str = ""
    text: str = ""
    colour: str = ""
    radius: float = 0.0
    anchor: str = ""


class Chart:
    """One chart that marks are added to.

    Args:
        size: Width and height in pixels.
        label: What a screen reader says in its place.
        margin: Room around the axes in pixels: top, right, bottom, left.
    """

    def __init__(
        self,
        size: tuple[int, int],
        x: Axis,
        y: Axis,
        label: str,
        margin: tuple[int, int, int, int] = (6, 8, 18, 38),
    ) -> None:
        self.size, self.x, self.y, self.label = size, x, y, label
        self.top, right, bottom, self.left = margin
        self.right, self.bottom = size[0] - right, size[1] - bottom
        self.marks: list[Mark] = []

    def at(self, x: float, y: float) -> Point:
        """Return the pixels of a point."""
        across = self.left + self.x.share(x) * (self.right - self.left)
        return across, self.bottom - self.y.share(y) * (self.bottom - self.top)

    def line(
        self, points: Iterable[Point], style: str = "", text: str = "", colour: str = ""
    ) -> None:
        """Add a line through points, in the colour of its style if none is given."""
        places = [self.at(*point) for point in points]
        self.marks.append(Mark("polyline", places, f"line {style}", text, colour))

    def dot(
        self, x: float, y: float, radius: float, style: str, text: str = "", colour: str = ""
    ) -> None:
        """Add a round mark."""
        self.marks.append(Mark("circle", [self.at(x, y)], style, text, colour, radius))

    def shape(self, corners: Sequence[Point], style: str, text: str = "") -> None:
        """Add a filled shape, placed in pixels."""
        self.marks.append(Mark("polygon", corners, style, text))

    def box(self, x: tuple[float, float], y: tuple[float, float], style: str) -> None:
        """Add a rectangle between two values of each axis, half a pixel wide and high at least."""
        left, low = self.at(x[0], min(y))
        right, high = self.at(x[1], max(y))
        right, low = max(right, left + 0.5), max(low, high + 0.5)
        self.shape(((left, high), (right, high), (right, low), (left, low)), style)

    def text(self, x: float, y: float, text: str, anchor: str = "start", style: str = "") -> None:
        """Add text, placed in pixels."""
        self.marks.append(Mark("text", [(x, y)], style, text, anchor=anchor))

    def frame(self, x: Iterable[tuple[float, str]], y: Iterable[tuple[float, str]]) -> None:
        """Add ticks with their labels, and lines across at those of the vertical axis."""
        for value, label in y:
            self.line(((self.x.low, value), (self.x.high, value)), "grid")
            self.text(self.left - 4, self.at(self.x.low, value)[1] + 3.5, label, "end")
        for value, label in x:
            across, floor = self.at(value, self.y.low)
            self.marks.append(Mark("polyline", [(across, floor), (across, floor + 3)], "tick"))
            self.text(across, floor + 13, label, "middle")


class Figure(NamedTuple):
    """A chart among others, with what stands above it: a title, and figures of its own."""

    title: str
    chart: Chart
    text: str = ""


def labelled(values: Iterable[float]) -> Iterator[tuple[float, str]]:
    """Yield ticks with plain figures as their labels."""
    return ((value, f"{value:.6g}") for value in values)
