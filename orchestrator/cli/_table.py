from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from orchestrator.cli._console import complain, echo, output, progress_bar
from orchestrator.cli._options import (
    Json,
    StorageFolder,
    Sweeps,
    split_names,
    tracked_results,
    use_columns,
    use_metrics,
)
from trainables.common.errors import InputError, known_names
from trainables.common.paths import DEFAULT_STORAGE

if TYPE_CHECKING:
    from orchestrator.tables.table import ComparisonTable

T = TypeVar("T")
Format = Literal["terminal", "markdown", "csv", "json", "latex", "html", "parquet"]
Rows = Annotated[
    str, typer.Option(help="What a row is: recipe, and any of dataset,model,protocol,task.")
]
SHOWN = {
    "published": "the paper's figures",
    "floor": "noise floors",
    "gain": "gains of the searches over published defaults",
    "ties": "recipes that cannot be told apart",
    "runs": "run ids",
    "sorted": "best row first, by the first metric",
    "mixed": "sweeps together whose data or code differ",
    "comparable": "no run ids and seconds, so that equal runs give equal files",
}
Shown = Annotated[
    str, typer.Option(help=f"Any of {', '.join(f'{w} ({says})' for w, says in SHOWN.items())}.")
]
Out = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Write this file instead of printing; parquet needs it."),
]


def table(
    sweeps: Sweeps = None,
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
    show: Shown = "",
    baseline: Annotated[
        str | None, typer.Option(help="Show each gain or loss against this row.")
    ] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = "terminal",
    as_json: Json = False,
    out: Out = None,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> None:
    """Print a comparison table of sweeps.

    If several sweeps have the same row, the table shows that of the sweep named first.
    """
    from orchestrator.tables.arrange import combine
    from orchestrator.tables.make import TableOptions, make_table

    shown, format = _words(show), "json" if as_json else format
    if format == "parquet" and out is None:
        raise InputError("--format parquet cannot be printed; use --out FILE.parquet")
    if "gain" in shown and baseline is not None:
        raise InputError(
            "--show gain and --baseline exclude each other: both show a difference after a figure"
        )
    found = tracked_results(sweeps or ["demo"], None, storage)
    if "comparable" in shown:
        found = [[replace(own, run_ids=(), seconds=()) for own in sweep] for sweep in found]
    options = TableOptions(
        metrics=metrics if metrics is None else split_names(metrics),
        recipes=recipes if recipes is None else split_names(recipes),
        tasks=tasks if tasks is None else split_names(tasks),
        rows=split_names(rows),
        layout=layout,
        published="published" in shown,
        baseline=baseline,
        floor="floor" in shown,
        runs="runs" in shown,
    )
    together = combine(found, lambda text: complain(f"note: {text}"), "mixed" in shown)
    built = make_table(together, options)
    filled = use_columns(together, built.metrics, storage)
    built = built if filled is together else make_table(filled, options)
    built = built.sorted_by(built.metrics[0]) if "sorted" in shown else built
    built = _with_gains(built, storage) if "gain" in shown else built
    _show(_with_ties(built, storage) if "ties" in shown else built, format, out)


def _words(show: str) -> list[str]:
    words = split_names(show)
    for word in words:
        if word not in SHOWN:
            raise InputError(f"--show: {word!r} is unknown; {known_names(word, SHOWN)}")
    if {"comparable", "runs"} <= {*words}:
        raise InputError("--show: comparable and runs exclude each other: comparable has no runs")
    return words


def _show(built: ComparisonTable, format: Format, out: Path | None) -> None:
    from orchestrator.tables.make import render, to_rich

    if format == "terminal" and out is None:
        output().print(to_rich(built))
    elif out is None:
        echo(render(built, format).rstrip("\n"))
    else:
        from orchestrator.logits.files import write_whole  # It imports PyTorch.

        if format == "parquet":
            write_whole(out, lambda stream: built.to_pandas().to_parquet(stream, index=False))
        else:
            text = render(built, format)
            write_whole(out, lambda stream: stream.write(text.encode()))
        echo(f"wrote {out}")


def _resampled(
    table: ComparisonTable, option: str, storage: str, measure: Callable[..., T]
) -> dict[tuple[str, str], T]:
    """Return the result of ``measure`` for each task and each metric that can be resampled."""
    from orchestrator.storage.storage import Storage
    from trainables.metrics import METRICS

    pairs = product(table.recipes, table.tasks)
    results = [table.results[pair] for pair in pairs if pair in table.results]
    use_metrics(results, table.metrics, storage)
    metrics = [metric for metric in table.metrics if metric in METRICS.measurable]
    if not metrics:
        allowed = ", ".join(METRICS.measurable)
        raise InputError(f"--show {option}: no column of the table is one of {allowed}")
    if others := [metric for metric in table.metrics if metric not in metrics]:
        skipped = f"skipped {', '.join(others)}, which test rows alone do not determine"
        echo(f"--show {option}: {skipped}", err=True)
    store, numbers, total = Storage(storage).store(), count(1), len(metrics) * len(results)
    found = {}
    with progress_bar("resampling") as show:

        def step(recipe: str) -> None:
            show(next(numbers), total)

        for task, metric in product(table.tasks, metrics):
            ours = [result for result in results if result.task == task]
            found[task, metric] = measure(ours, store, metric, done=step)
    return found


def _with_ties(table: ComparisonTable, storage: str) -> ComparisonTable:
    from orchestrator.statistics import board, ties
    from orchestrator.tables.table import Grouping

    measured = _resampled(table, "ties", storage, lambda *args, **kwds: ties(board(*args, **kwds)))
    groups = {
        place: Grouping(found.letters, found.need.text if found.need else "", found.seeds)
        for place, found in measured.items()
    }
    return replace(table, ties=groups)


def _with_gains(table: ComparisonTable, storage: str) -> ComparisonTable:
    from orchestrator.statistics import search_gains
    from orchestrator.tables.table import Gain

    gains: dict[tuple[str, str, str], Gain] = {}
    for (task, metric), found in _resampled(table, "gain", storage, search_gains).items():
        for recipe, change in found.bootstrap.differences.items():
            kept, similar = table.results[recipe, task].kept_default, found.inside_floor(recipe)
            ends = (change.value, change.low, change.high)
            gains[recipe, task, metric] = Gain(*ends, kept, similar)
    return replace(table, gains=gains)
