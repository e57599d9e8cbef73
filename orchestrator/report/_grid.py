"""Tables of the page: what stands in a cell, and by what it is sorted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup

__all__ = ["Entry", "Grid", "Heading", "many", "number", "without"]


@dataclass(frozen=True)
class Heading:
    """One column.

    Attributes:
        text: Its heading.
        numeric: Whether it is sorted by number, and stands to the right.
        hint: What it means, if that needs a word.
        higher: Whether the first click puts the largest number first.
    """

    text: str
    numeric: bool = True
    hint: str = ""
    higher: bool = False


@dataclass(frozen=True)
class Entry:
    """One cell.

    Attributes:
        text: What is shown.
        order: What it is sorted by; an empty text comes last in either direction.
        style: Class of the style sheet, or nothing.
        aside: What stands behind it in smaller letters.
        graphic: A small drawing at the end, if any.
    """

    text: str
    order: str = ""
    style: str = ""
    aside: str = ""
    graphic: Markup | None = None


@dataclass(frozen=True)
class Grid:
    """One table.

    Attributes:
        name: Names it within the page: letters, digits and hyphens.
        caption: What it shows.
        headings: Its columns; the first names the rows.
        rows: Its cells.
        notes: Lines below it.
    """

    name: str
    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = field(default_factory=tuple)


def number(text: str, value: float | None, style: str = "", aside: str = "") -> Entry:
    """Return a cell with a number, or a dash where there is none."""
    if value is None or not math.isfinite(value):
        return Entry("–" if value is None else text, "", "none")
    return Entry(text, repr(float(value)), style, aside)


def many(count: int, noun: str) -> str:
    """Return how many there are of something."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def without(grid: Grid, heading: str) -> Grid:
    """Return a table without one of its columns."""
    kept = [place for place, found in enumerate(grid.headings) if found.text != heading]
    rows = [[row[place] for place in kept] for row in grid.rows]
    return replace(grid, headings=[grid.headings[place] for place in kept], rows=rows)
