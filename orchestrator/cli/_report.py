"""``calsweep report``: a page, and plots of the search."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli._console import echo
from orchestrator.cli._options import StorageFolder, SweepName, TrackingUri, tracked_results
from trainables.common.paths import DEFAULT_STORAGE
from trainables.common.words import many


def report(
    sweep: SweepName = "demo",
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Where to write it; default: in the sweep's folder."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The recipe to compare with; default: ce where there is one.")
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Folder for slices of the search, learning curves and MaC-Cal's q."),
    ] = None,
    tracking_uri: TrackingUri = None,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> None:
    """Write the report of a sweep: one HTML page with its tables, diagrams, searches and costs."""
    from orchestrator.cli._outcome import write_page
    from orchestrator.storage.storage import Storage
    from orchestrator.sweep.names import is_sweep_name
    from orchestrator.view import from_folder
    from trainables.common.errors import InputError

    if not is_sweep_name(sweep):
        raise InputError(f"{sweep!r} is not a name of a sweep")
    root = Storage(storage)
    if plots is not None:
        _plot(root.started(sweep).journal, plots)
    folder = root.sweep(sweep)
    folder.fetch(files=True)
    results = None
    if tracking_uri is not None or not folder.journal.is_file():
        [results] = tracked_results([sweep], tracking_uri, storage)
    source = from_folder(folder, results)
    echo(f"wrote {write_page(source, out or folder.report, baseline)}")


def _plot(journal: Path, folder: Path) -> None:
    from orchestrator.storage.journal import iterate_events
    from orchestrator.view.plots import write_plots

    written = write_plots(iterate_events(journal, kinds=None), folder)
    if not written:
        echo("there is nothing to plot yet")
        return
    echo(f"{many(len(written), 'plot')} in {folder}:")
    for path in written:
        echo(f"  {path.name}")
