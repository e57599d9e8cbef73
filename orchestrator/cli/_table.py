"""``calsweep table``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli._console import output
from orchestrator.cli._options import Storage, TrackingUri

__all__ = ["table"]


class TableFormat(StrEnum):
    """How a table is printed."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    html = "html"


def table(
    sweep: Annotated[str, typer.Argument(help="The sweep's name.")] = "demo",
    metrics: Annotated[
        str, typer.Option(help="Columns, separated by commas.")
    ] = "acc,ece,aece,cwece,nll",
    sort: Annotated[str | None, typer.Option(help="Sort the rows by this metric.")] = None,
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.terminal,
    tracking_uri: TrackingUri = None,
    storage: Storage = "calsweep-storage",
) -> int:
    """Print a sweep's comparison table from the tracking server."""
    from orchestrator.selection import comparison_table, default_tracking_uri
    from orchestrator.tables import render, to_rich

    columns = [name.strip() for name in metrics.split(",") if name.strip()]
    uri = tracking_uri or default_tracking_uri(storage)
    built = comparison_table(sweep, tracking_uri=uri, metrics=columns)
    built = built.sorted_by(sort) if sort else built
    if format is TableFormat.terminal:
        output().print(to_rich(built))
    else:
        typer.echo(render(built, format.value).rstrip("\n"))
    return 0
