"""The interval of a difference, drawn into the cell of a table."""

from __future__ import annotations

from statistics import median

from markupsafe import Markup

from orchestrator.report._svg import element
from orchestrator.statistics import Difference, TaskComparison

__all__ = ["interval", "reach"]

WIDTH, HEIGHT = 90, 16
FAR = 3.0  # How many times the usual reach still fits; what lies farther is cut off at the edge.


def reach(comparison: TaskComparison) -> float:
    """Return the difference at the edges of the drawings of one column."""
    differences = comparison.bootstrap.differences.values()
    ends = [max(abs(found.low), abs(found.high)) for found in differences]
    return min(max(ends), FAR * median(ends)) * 1.05 or 1.0 if ends else 1.0


def interval(found: Difference, limit: float, tone: str) -> Markup:
    """Draw a difference and its interval around zero; an arrow where they go on beyond the edge.

    Args:
        found: The difference.
        limit: The difference at the edges.
        tone: ``better``, ``worse`` or ``similar``.
    """
    middle, half = WIDTH / 2, WIDTH / 2 - 6

    def place(value: float) -> float:
        return middle + half * max(-1.0, min(1.0, value / limit))

    level = HEIGHT / 2
    marks = [
        element("line", x1=middle, x2=middle, y1=1, y2=HEIGHT - 1, class_="zero"),
        element("line", x1=place(found.low), x2=place(found.high), y1=level, y2=level),
    ]
    if abs(found.value) <= limit:
        marks.append(element("circle", cx=place(found.value), cy=level, r=3))
    marks += [_arrow(side) for side in (-1, 1) if _beyond(found, side, limit)]
    return element(
        "svg", *marks, width=WIDTH, height=HEIGHT, class_=f"interval {tone}", aria_hidden="true"
    )


def _beyond(found: Difference, side: int, limit: float) -> bool:
    return (found.high if side > 0 else -found.low) > limit


def _arrow(side: int) -> Markup:
    tip = WIDTH / 2 + side * (WIDTH / 2 - 0.5)
    return element("path", d=f"M{tip:.1f},{HEIGHT / 2}l{-6 * side},-4 0,8z")
