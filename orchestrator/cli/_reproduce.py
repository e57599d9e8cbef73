from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli._console import echo, output
from orchestrator.cli._options import DataRoot, StorageFolder, Tolerance, TrackingUri
from trainables.common.paths import DEFAULT_STORAGE

if TYPE_CHECKING:
    from orchestrator.running.reproduce import Progress, Reproduction

EQUAL, DIFFERENT = 0, 1


def reproduce(
    run_id: Annotated[str, typer.Argument(help="The MLflow run of a finished trial.")],
    tolerance: Tolerance = 1e-6,
    folder: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Keep the new artifacts here; default: nowhere."),
    ] = None,
    data_root: DataRoot = "data",
    tracking_uri: TrackingUri = None,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> int:
    """Train a run's configuration again and compare the figures: 0 if equal, 1 if not."""
    from orchestrator.running.reproduce import reproduce as compute
    from orchestrator.tracking import storage_uri

    with tempfile.TemporaryDirectory(prefix="calsweep-") as scratch:
        found = compute(
            run_id,
            tracking_uri=tracking_uri or storage_uri(storage),
            folder=folder or scratch,
            data_root=data_root,
            tolerance=tolerance,
            progress=_shown(Console(stderr=True, highlight=False)),
        )
    output().print(_table(found))
    for remark in found.remarks:
        echo(f"figures need not agree: {remark}")
    if found.equal:
        echo(f"equal: no figure differs by more than {found.tolerance:g}")
        return EQUAL
    worst = found.worst
    echo(
        f"different: {worst.metric} by {worst.difference:+.2e}, "
        f"more than {found.tolerance:g}; the run's code is {found.run.trial.code or 'unknown'}"
    )
    return DIFFERENT


def _shown(console: Console) -> Progress:
    """Return a function that writes a line when a stage begins, and now and then while it runs."""

    def show(stage: str, epoch: int, epochs: int) -> None:
        if epoch in (1, epochs) or epoch % max(1, epochs // 10) == 0:
            console.print(f"{stage}: epoch {epoch} of {epochs}")

    return show


def _table(found: Reproduction) -> Table:
    run = found.run
    title = f"{run.study.recipe} on {run.study.task}, seed {run.trial.seed}"
    table = Table(title=title, title_justify="left")
    for heading in ("metric", "recorded", "reproduced", "difference"):
        table.add_column(heading, justify="left" if heading == "metric" else "right")
    for figure in found.figures:
        change = f"{figure.difference:+.2e}" if figure.difference else "0"
        table.add_row(figure.metric, f"{figure.recorded:.6f}", f"{figure.reproduced:.6f}", change)
    return table
