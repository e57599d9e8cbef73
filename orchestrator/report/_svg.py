"""Small charts as SVG text, coloured by the page's style sheet so that they follow its theme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

from markupsafe import Markup

__all__ = ["POINTS", "Axis", "Plot", "element", "fitting", "labelled", "thinned"]

T = TypeVar("T")

POINTS = 100  # Most points of a curve: more cannot be told apart at these sizes.
WIDE = 20.0  # Ratio of the largest to the smallest value from which an axis is logarithmic.
ENOUGH = 3  # Ticks of a logarithmic axis; with fewer there are others between powers of ten.


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """Return one element; text and the values of attributes are escaped.

    Args:
        tag: Its name.
        content: Text and elements inside.
        attributes: ``class_`` is ``class``, ``stroke_width`` is ``stroke-width``; None is left out.
    """
    pairs = (
        (name.rstrip("_").replace("_", "-"), _short(value))
        for name, value in attributes.items()
        if value is not None
    )
    head = Markup("").join(Markup(' {}="{}"').format(*pair) for pair in pairs)
    inside = Markup("").join(map(Markup.escape, content))
    return Markup("<{tag}{head}>{inside}</{tag}>").format(tag=tag, head=head, inside=inside)


def _short(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


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
            return self._steps(count)
        found: list[float] = []
        for factors in ((1,), (1, 3), (1, 2, 5)):
            if len(found) < ENOUGH:
                found = self._decades(factors)
        return found

    def _steps(self, count: int) -> list[float]:
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= 0.8 * rough)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _decades(self, factors: Sequence[int]) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = (factor * 10.0**power for power, factor in product(powers, factors))
        return [value for value in found if self.low <= value <= self.high]


def fitting(values: Iterable[float], log: bool | None = None, margin: float = 0.06) -> Axis:
    """Return an axis that holds all values with some room at its ends.

    Args:
        values: Finite numbers, at least one.
        log: Whether it is logarithmic; None: if the values are positive and lie far apart.
        margin: Room at either end, a share of the span.
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


class Plot:
    """One chart that marks are added to.

    Args:
        size: Width and height in pixels.
        x: The horizontal axis.
        y: The vertical axis.
        label: What a screen reader says in its place.
        margin: Room around the axes in pixels: top, right, bottom, left.
    """

    def __init__(
        self,
        size: tuple[int, int],
        x: Axis,
        y: Axis,
        label: str,
        margin: tuple[int, int, int, int] = (6, 6, 18, 28),
    ) -> None:
        self.size, self.x, self.y, self.label = size, x, y, label
        self.top, right, bottom, self.left = margin
        self.right, self.bottom = size[0] - right, size[1] - bottom
        self._marks: list[Markup] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixels of a point."""
        across = self.left + self.x.share(x) * (self.right - self.left)
        return across, self.bottom - self.y.share(y) * (self.bottom - self.top)

    def add(self, tag: str, *content: object, **attributes: object) -> None:
        """Add any element, placed in pixels."""
        self._marks.append(element(tag, *content, **attributes))

    def line(
        self,
        points: Iterable[tuple[float, float]],
        class_: str,
        title: str = "",
        colour: str = "",
    ) -> None:
        """Add a line through points, in the colour of its class if none is given."""
        places = [self.at(*point) for point in points]
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
        content = [element("title", title)] if title else []
        self.add("path", *content, d=path, class_=f"line {class_}", stroke=colour or None)

    def dot(self, x: float, y: float, radius: float, class_: str, title: str = "") -> None:
        """Add a round mark."""
        across, down = self.at(x, y)
        content = [element("title", title)] if title else []
        self.add("circle", *content, cx=across, cy=down, r=radius, class_=class_)

    def box(self, x: tuple[float, float], y: tuple[float, float], class_: str) -> None:
        """Add a rectangle between two values of each axis."""
        left, low = self.at(x[0], min(y))
        right, high = self.at(x[1], max(y))
        width = max(right - left, 0.5)
        self.add("rect", x=left, y=high, width=width, height=max(low - high, 0.5), class_=class_)

    def text(self, x: float, y: float, text: str, anchor: str = "start", class_: str = "") -> None:
        """Add text, placed in pixels."""
        self.add("text", text, x=x, y=y, text_anchor=anchor, class_=class_ or None)

    def frame(
        self,
        x: Iterable[tuple[float, str]],
        y: Iterable[tuple[float, str]],
        grid: bool = True,
    ) -> None:
        """Add ticks with their labels, and lines across at those of the vertical axis."""
        for value, label in y:
            down = self.at(self.x.low, value)[1]
            if grid:
                self.add("line", x1=self.left, x2=self.right, y1=down, y2=down, class_="grid")
            self.text(self.left - 4, down + 3.5, label, "end")
        for value, label in x:
            across = self.at(value, self.y.low)[0]
            ends = (self.bottom, self.bottom + 3)
            self.add("line", x1=across, x2=across, y1=ends[0], y2=ends[1], class_="tick")
            self.text(across, self.bottom + 13, label, "middle")

    def svg(self, class_: str = "") -> Markup:
        """Return the whole chart."""
        width, height = self.size
        return element(
            "svg",
            *self._marks,
            viewBox=f"0 0 {width} {height}",
            width=width,
            height=height,
            role="img",
            aria_label=self.label,
            class_=class_ or None,
        )


def labelled(values: Iterable[float]) -> Iterator[tuple[float, str]]:
    """Yield ticks with plain figures as their labels."""
    return ((value, f"{value:.6g}") for value in values)
