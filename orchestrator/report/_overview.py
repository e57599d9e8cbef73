"""What the page says first: of the sweep as a whole, and of several tasks side by side."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from orchestrator._table import Cell
from orchestrator.report._grid import Entry, Grid, Heading, many, number
from orchestrator.report._source import ReportSource
from orchestrator.tables import build_table
from trainables.errors import InputError

__all__ = ["Overview", "overview", "summary"]


@dataclass(frozen=True)
class Overview:
    """Several tasks side by side.

    Attributes:
        grids: A table of accuracy, one of ECE.
        ranks: What can be said of ranks over data sets and models.
        diagram: The critical-difference diagram as a data URI, or nothing.
    """

    grids: list[Grid]
    ranks: str
    diagram: str


def summary(source: ReportSource) -> str:
    """Return the size and the state of the sweep in a sentence."""
    recipes = len({result.recipe for result in source.results})
    seeds = max(len(result.test) for result in source.results)
    parts = [many(recipes, "recipe"), many(len(source.tasks), "task")]
    parts += [many(seeds, "seed")] if seeds else []
    trials = sum(result.trials_finished for result in source.results)
    failed = sum(result.trials_failed for result in source.results)
    parts.append(many(trials, "finished search trial"))
    parts += [f"{failed} failed"] if failed else []
    return ", ".join(parts)


def overview(source: ReportSource) -> Overview | None:
    """Return the tasks side by side, or None if there is one only."""
    if len(source.tasks) < 2:
        return None
    grids = [_grid(source, metric) for metric in ("ece", "acc")]
    return Overview(grids, *_ranks(source))


def _grid(source: ReportSource, metric: str) -> Grid:
    table = build_table(source.results, (metric,))
    shown = table.columns[0].shown
    headings = [Heading("Recipe", numeric=False)]
    names = (" / ".join(entry.groups) or entry.tasks[0] for entry in table.columns)
    headings += [Heading(name, higher=shown.higher) for name in names]
    rows = []
    for row in table.rows:
        entries = [Entry(row.label, row.label)]
        for entry, cell in zip(table.columns, table.line(row), strict=True):
            found = table.figure(row, entry)
            if isinstance(cell, Cell) and found is not None:
                deviation = "" if found.std is None else f"±{shown.show(found.std)}"
                entries.append(number(shown.show(found.mean), found.mean, cell.mark, deviation))
            else:
                entries.append(Entry(getattr(cell, "short", "–"), "", "none"))
        rows.append(entries)
    return Grid(f"all-{metric}", f"Test {shown.heading} on every task", headings, rows)


def _ranks(source: ReportSource) -> tuple[str, str]:
    """Return what ranks over (data set, model) blocks say, and their diagram."""
    from orchestrator.statistics import (
        block_scores,
        critical_difference_diagram,
        rank_comparison,
    )

    try:
        comparison = rank_comparison(block_scores(source.results, "ece").scores)
    except (InputError, ValueError) as error:
        return f"No ranks over data sets and models: {error}.", ""
    stream = io.BytesIO()
    critical_difference_diagram(comparison, "Average rank by ECE").savefig(
        stream, format="svg", bbox_inches="tight"
    )
    text = base64.b64encode(stream.getvalue()).decode()
    return "", f"data:image/svg+xml;base64,{text}"
