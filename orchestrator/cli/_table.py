"""``calsweep table``."""

from typing import Annotated, Literal

import typer

from orchestrator.cli._console import echo, output
from orchestrator.cli._options import StorageFolder, TrackingUri, split_names, tracked_results
from trainables.common.paths import DEFAULT_STORAGE

Format = Literal["terminal", "markdown", "csv", "latex", "html"]
Rows = Annotated[
    str, typer.Option(help="What a row is: recipe, and any of dataset,model,protocol,task.")
]
Columns = Annotated[
    Literal["auto", "paper", "sweep"],
    typer.Option(help="A layout's columns: the paper's, the sweep's, or what there is."),
]


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
    rows: Rows = "recipe",
    layout: Annotated[
        str | None, typer.Option(help="Rows and columns of a paper's table, or PATH.yaml.")
    ] = None,
    columns: Columns = "auto",
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
    format: Annotated[Format, typer.Option(help="Output format.")] = "terminal",
    tracking_uri: TrackingUri = None,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> None:
    """Print a comparison table of one sweep, or of several, from the tracking server."""
    from orchestrator.tables.arrange import combine
    from orchestrator.tables.make import TableOptions, make_table, render
    from orchestrator.tables.renderers import to_rich

    found = tracked_results(sweeps or ["demo"], tracking_uri, storage)
    options = TableOptions(
        metrics=metrics if metrics is None else split_names(metrics),
        recipes=recipes if recipes is None else split_names(recipes),
        tasks=tasks if tasks is None else split_names(tasks),
        rows=split_names(rows),
        layout=layout,
        columns=columns,
        published=published,
        baseline=baseline,
        floor=floor,
        runs=runs,
        sort=sort,
    )
    built = make_table(combine(found, prefer, mixed), options)
    if format == "terminal":
        output().print(to_rich(built))
    else:
        echo(render(built, format).rstrip("\n"))
