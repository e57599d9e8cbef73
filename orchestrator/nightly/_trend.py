"""The series of a cell over the nights: as blocks in a terminal, a line in a page, a plot, CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.nightly._record import CellKey, NightRecord
from orchestrator.nightly._summary import figure, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["drawing", "plotted", "series_of", "sparkline", "to_csv"]

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "·"
WIDTH, HEIGHT = 320, 48
COLUMNS = 3

Series = Sequence[float | None]


def series_of(records: Sequence[NightRecord], cell: CellKey) -> list[float | None]:
    """Return a cell's mean over seeds, night by night; None where there is no finite one."""
    values = (mean(record, cell) for record in records)
    return [value if value is not None and math.isfinite(value) else None for value in values]


def sparkline(values: Series) -> str:
    """Draw a series in one line of text; a dot for a night without a figure."""
    return "".join(
        GAP if height is None else BLOCKS[round(height * (len(BLOCKS) - 1))]
        for height in _heights(values)
    )


def _heights(values: Series) -> list[float | None]:
    """Return values between 0 and 1; all in the middle if they are equal."""
    known = [value for value in values if value is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    return [
        None if value is None else ((value - low) / span if span > 0 else 0.5) for value in values
    ]


def drawing(cell: CellKey, values: Series) -> str:
    """Draw a series as SVG with its cell's name."""
    step = WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{index * step:.1f},{HEIGHT - 4 - height * (HEIGHT - 8):.1f}"
        for index, height in enumerate(_heights(values))
        if height is not None
    )
    last = next((value for value in reversed(values) if value is not None), None)
    return (
        f"<figure><figcaption>{html.escape(str(cell))}, {len(values)} nights, last "
        f'{html.escape(figure(cell, last))}</figcaption><svg width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><polyline points="{points}" fill="none" '
        'stroke="#0b5394" stroke-width="2"/></svg></figure>'
    )


def to_csv(records: Sequence[NightRecord], cells: Sequence[CellKey]) -> str:
    """Write every value: night, recipe, task, metric, seed, value (fractions, seconds, bytes)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["night", "recipe", "task", "metric", "seed", "value"])
    for record in records:
        for cell in cells:
            for seed, value in record.cells.get(cell, {}).items():
                writer.writerow([record.night, *cell, seed, value])
    return text.getvalue()


def plotted(
    records: Sequence[NightRecord],
    cells: Sequence[CellKey],
    alarmed: Mapping[CellKey, Sequence[int]],
) -> Figure:
    """Plot series, one panel a cell.

    Args:
        records: The nights, oldest first.
        cells: What to plot.
        alarmed: Cell to the positions of nights on which it raised the alarm.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(len(cells) / COLUMNS)
    page = Figure(figsize=(4.2 * COLUMNS, 2.3 * rows), layout="constrained")
    for position, cell in enumerate(cells):
        axes = page.add_subplot(rows, COLUMNS, position + 1)
        values = [math.nan if v is None else v for v in series_of(records, cell)]
        axes.plot(range(len(values)), values, marker=".", linewidth=1)
        bad = list(alarmed.get(cell, ()))
        axes.plot(bad, [values[night] for night in bad], "rx")
        axes.set_title(str(cell), fontsize=7)
        axes.tick_params(labelsize=6)
        if records:
            ends = [0, len(records) - 1]
            axes.set_xticks(ends, [records[end].night for end in ends])
    return page
