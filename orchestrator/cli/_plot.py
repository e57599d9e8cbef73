"""``calsweep plot``."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli._console import echo

__all__ = ["plot"]


def plot(
    sweep: Annotated[str, typer.Argument(help="The sweep's name.")] = "demo",
    storage: Annotated[str, typer.Option(help="Storage folder of the sweep.")] = "calsweep-storage",
) -> int:
    """Draw slices of the search, learning curves and MaC-Cal's q from a sweep's journal."""
    from orchestrator.journal import read_events
    from orchestrator.plots import write_plots
    from orchestrator.run import JOURNAL, load_existing

    directory = load_existing(sweep, storage).directory
    events, _ = read_events(directory / JOURNAL)
    written = write_plots(events, directory / "plots")
    if not written:
        echo(f"sweep {sweep} has nothing to plot yet")
        return 0
    echo(f"{len(written)} plots in {directory / 'plots'}:")
    for path in written:
        echo(f"  {path.name}")
    return 0
