from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from orchestrator.cli._console import echo, output

if TYPE_CHECKING:
    from orchestrator.running.reproduce import Progress, Reproduction

EQUAL, DIFFERENT = 0, 1


def reproduce(run_id: str, tracking_uri: str, data_root: str, tolerance: float, quiet: bool) -> int:
    """Compute a run's configuration again and compare the figures; return 0 if equal, else 1."""
    from orchestrator.running.reproduce import reproduce as compute

    shown = {} if quiet else {"progress": _shown(Console(stderr=True, highlight=False))}
    with tempfile.TemporaryDirectory(prefix="calsweep-") as scratch:
        found = compute(
            run_id,
            tracking_uri=tracking_uri,
            folder=scratch,
            data_root=data_root,
            tolerance=tolerance,
            **shown,
        )
    output().print(_table(found))
    for remark in found.remarks:
        echo(f"results may differ: {remark}")
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
    """Return a function that prints the first, the last and some other epochs of a stage."""

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
