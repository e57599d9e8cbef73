"""``calsweep nightly history``: every series as a plot and as CSV."""

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import nightly
from orchestrator.cli._console import echo
from orchestrator.cli.nightly.common import File, all_cells, judged_nights, load, matching_cells
from trainables.common.errors import InputError
from trainables.common.paths import local_path


def history(
    file: File = None,
    cell: Annotated[
        list[str] | None, typer.Option(help="RECIPE on TASK: METRIC; several; default: all.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for history.csv and history.png.")
    ] = None,
) -> int:
    """Write every cell's series as a plot and as CSV."""
    benchmark = load(file)
    judged = judged_nights(benchmark)
    records = [record for record, _ in judged]
    known = all_cells(records)
    if not known:
        raise InputError(f"{benchmark.name} has no figures in any night: all recipes failed")
    chosen = (named for text in cell or () for named in matching_cells(text, known))
    cells = list(dict.fromkeys(chosen)) or known
    alarmed = defaultdict(list)
    for number, (_, verdict) in enumerate(judged):
        for found in dict.fromkeys(finding.cell for finding in verdict.alarms):
            alarmed[found].append(number)
    folder = local_path(out or benchmark.folder, "--out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "history.csv").write_text(nightly.to_csv(records, cells), encoding="utf-8")
        nightly.plotted(records, cells, alarmed).savefig(folder / "history.png", dpi=110)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error}") from error
    echo(f"{len(records)} nights, {len(cells)} series: {folder / 'history.csv'}, .png")
    return 0
