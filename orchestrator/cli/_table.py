"""``calsweep table``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli._console import echo, output
from orchestrator.cli._options import Storage, TrackingUri

__all__ = ["table"]


class TableFormat(StrEnum):
    """How a table is printed."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    html = "html"


class ColumnChoice(StrEnum):
    """What a layout's columns are."""

    auto = "auto"
    paper = "paper"
    sweep = "sweep"


def table(
    sweeps: Annotated[
        list[str] | None, typer.Argument(help="Names of sweeps; demo if none is given.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Columns, such as ece,cifar10-c/ece,seconds; a layout has its own."),
    ] = None,
    recipes: Annotated[
        str | None, typer.Option(help="Only these rows, such as 'ce,mbls*'; * is any text.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Only these tasks, such as 'cifar10/*'; * is any text.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="What a row is: recipe, and any of dataset,model,protocol,task.")
    ] = "recipe",
    layout: Annotated[
        str | None, typer.Option(help="Rows and columns of a paper's table, or PATH.yaml.")
    ] = None,
    columns: Annotated[
        ColumnChoice,
        typer.Option(help="A layout's columns: the paper's, the sweep's, or what there is."),
    ] = ColumnChoice.auto,
    published: Annotated[
        bool, typer.Option("--published", help="Show the paper's figures beside ours.")
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(help="Show each gain or loss against this row.")
    ] = None,
    floor: Annotated[
        bool, typer.Option("--floor", help="Show each figure's noise floor, mark what is in it.")
    ] = False,
    runs: Annotated[
        bool, typer.Option("--runs", help="List the runs that the figures come from.")
    ] = False,
    sort: Annotated[str | None, typer.Option(help="Sort the rows by this metric.")] = None,
    prefer: Annotated[
        str | None, typer.Option(help="Of several sweeps, the one to take where they overlap.")
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Show sweeps together whose data or code differ.")
    ] = False,
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.terminal,
    tracking_uri: TrackingUri = None,
    storage: Storage = "calsweep-storage",
) -> int:
    """Print a comparison table of one sweep, or of several, from the tracking server."""
    from orchestrator.selection import default_tracking_uri
    from orchestrator.tables import TableOptions, combine, make_table, render, to_rich
    from orchestrator.tracking import study_results

    uri = tracking_uri or default_tracking_uri(storage)
    found = [study_results(uri, sweep) for sweep in dict.fromkeys(sweeps or ["demo"])]
    options = TableOptions(
        metrics=_split(metrics),
        recipes=_split(recipes),
        tasks=_split(tasks),
        rows=_split(rows) or (),
        layout=layout,
        columns=columns.value,
        published=published,
        baseline=baseline,
        floor=floor,
        runs=runs,
        sort=sort,
    )
    built = make_table(combine(found, prefer, mixed), options)
    if format is TableFormat.terminal:
        output().print(to_rich(built))
    else:
        echo(render(built, format.value).rstrip("\n"))
    return 0


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]
