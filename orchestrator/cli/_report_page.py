"""``calsweep report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import echo
from orchestrator.cli._options import Storage, TrackingUri

if TYPE_CHECKING:
    from orchestrator.report import ReportSource

__all__ = ["PAGE", "report", "write_page"]

PAGE = "report.html"


def report(
    sweep: Annotated[str, typer.Argument(help="The sweep's name.")] = "demo",
    out: Annotated[
        Path | None, typer.Option(help="Where to write it; default: in the sweep's folder.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The recipe to compare with; default: ce where there is one.")
    ] = None,
    tracking_uri: TrackingUri = None,
    storage: Storage = "calsweep-storage",
) -> int:
    """Write the report of a sweep: one HTML page with its tables, diagrams, searches and costs."""
    from orchestrator.report import from_folder
    from orchestrator.run import JOURNAL
    from orchestrator.spec import is_sweep_name
    from trainables.artifacts import ArtifactStore
    from trainables.errors import InputError
    from trainables.paths import storage_folder

    if not is_sweep_name(sweep):
        raise InputError(f"no sweep can be called {sweep!r}")
    root = storage_folder(storage)
    folder = root / "sweeps" / sweep
    results = None
    if tracking_uri is not None or not (folder / JOURNAL).is_file():
        from orchestrator.selection import default_tracking_uri
        from orchestrator.tracking import study_results

        results = study_results(tracking_uri or default_tracking_uri(storage), sweep)
    source = from_folder(sweep, folder, ArtifactStore(root / "artifacts"), results)
    echo(f"wrote {write_page(source, out or folder / PAGE, baseline)}")
    return 0


def write_page(source: ReportSource, path: Path, baseline: str | None = None) -> Path:
    """Write the report of a sweep, with progress on stderr; see ``write_report``."""
    from rich.console import Console
    from rich.progress import Progress

    from orchestrator.report import write_report

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        line = shown.add_task("writing the report")

        def progress(done: int, total: int) -> None:
            shown.update(line, completed=done, total=total)

        return write_report(source, path, baseline, progress)
