"""Comparison tables from study results, in five formats.

``make_table(results, options)`` arranges what ``calsweep table`` shows, ``build_table(results)``
the plain table; ``render(table, "markdown")`` writes, ``to_rich(table)`` is for a live terminal.
Nothing here reads files (a layout of one's own apart) or the tracking server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator._arrange import arrange, build_table, by_pair, combine, select
from orchestrator._columns import COLUMNS, DEFAULT_METRICS, column
from orchestrator._renderers import RENDERERS, to_rich
from orchestrator._table import ComparisonTable
from orchestrator.results import StudyResult
from trainables.errors import InputError

__all__ = [
    "COLUMNS",
    "DEFAULT_METRICS",
    "FORMATS",
    "ComparisonTable",
    "TableOptions",
    "build_table",
    "column",
    "combine",
    "make_table",
    "render",
    "to_rich",
]

FORMATS = tuple(RENDERERS)


@dataclass(frozen=True)
class TableOptions:
    """What a table shows; ``calsweep table --help`` describes the same.

    Attributes:
        metrics: The columns; None for those of the layout, or the usual ones.
        recipes: Patterns of the recipes to show; None for all.
        tasks: Patterns of the tasks to show; None for all.
        rows: What a row stands for; see ``build_table``. Not with a layout.
        layout: Name or path of a layout, or nothing.
        columns: ``paper`` for the layout's data sets and models, ``sweep`` for those of the
            results, ``auto`` for the latter where the results have none of the former.
        published: Whether the paper's figures stand beside ours. Only with a layout.
        baseline: The row that all others are compared with.
        floor: Whether each figure's noise floor is shown.
        runs: Whether the runs that the figures come from are listed.
        sort: The metric that the rows are sorted by.
    """

    metrics: Sequence[str] | None = None
    recipes: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    rows: Sequence[str] = ("recipe",)
    layout: str | None = None
    columns: str = "auto"
    published: bool = False
    baseline: str | None = None
    floor: bool = False
    runs: bool = False
    sort: str | None = None


def make_table(
    results: Iterable[StudyResult], options: TableOptions | None = None
) -> ComparisonTable:
    """Arrange results as asked for.

    Args:
        results: One a recipe and task; see ``combine`` for several sweeps.
        options: What to show; None for the plain table.

    Raises:
        InputError: If an option names what is not there, or two do not go together.
    """
    wanted = options or TableOptions()
    chosen = by_pair(select(results, wanted.recipes, wanted.tasks))
    if wanted.layout is None:
        if wanted.published:
            raise InputError("--published needs --layout, which names the paper's table")
        metrics = DEFAULT_METRICS if wanted.metrics is None else wanted.metrics
        table = arrange(chosen, metrics, wanted.rows)
    else:
        if tuple(wanted.rows) != ("recipe",):
            raise InputError("--rows and --layout exclude each other: a layout has its own rows")
        # pandas, which reads published figures, is needed here only
        from orchestrator.layouts import arrange_layout, load_layout

        layout = load_layout(wanted.layout)
        table = arrange_layout(layout, chosen, wanted.metrics, wanted.columns, wanted.published)
    table = replace(table, floor=wanted.floor, runs=wanted.runs)
    table = table.compared_with(wanted.baseline) if wanted.baseline else table
    return table.sorted_by(wanted.sort) if wanted.sort else table


def render(table: ComparisonTable, format: str) -> str:
    """Write a table as text.

    Figures are mean ± sample standard deviation over seeds, accuracy and calibration errors in
    percent, NLL and Brier as they are. In each column the best is bold and the second underlined
    (not in plain ``terminal`` text), compared as printed, so equal prints share a mark. ``csv``
    holds plain fractions: of a plain table one line a study with every metric, of a layout one line
    a cell.

    Args:
        table: What ``make_table`` or ``build_table`` returned.
        format: ``terminal``, ``markdown``, ``csv``, ``latex`` or ``html``.

    Raises:
        InputError: If there is no such format.
    """
    if format not in RENDERERS:
        raise InputError(f"unknown format {format!r}; there are: {', '.join(FORMATS)}")
    return RENDERERS[format](table)
