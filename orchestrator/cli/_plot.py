"""``calsweep plot``."""

from typing import Annotated

import typer

from orchestrator.cli._console import echo
from orchestrator.cli._options import SweepName
from trainables.common.paths import DEFAULT_STORAGE


def plot(
    sweep: SweepName = "demo",
    storage: Annotated[str, typer.Option(help="Storage folder of the sweep.")] = DEFAULT_STORAGE,
) -> None:
    """Draw slices of the search, learning curves and MaC-Cal's q from a sweep's journal."""
    from orchestrator.report.plots import write_plots
    from orchestrator.storage.journal import iterate_events
    from orchestrator.storage.storage import Storage, SweepFolder

    place = Storage(storage)
    folder = SweepFolder.of(place.load_spec(sweep))
    written = write_plots(iterate_events(folder.journal, kinds=None), folder.plots)
    if not written:
        echo(f"sweep {sweep} has nothing to plot yet")
        return
    echo(f"{len(written)} plots in {folder.plots}:")
    for path in written:
        echo(f"  {path.name}")
