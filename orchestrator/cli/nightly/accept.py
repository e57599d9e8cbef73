"""``calsweep nightly accept``: a change that is intended."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import nightly
from orchestrator.cli._console import echo
from orchestrator.cli.nightly.common import all_cells, judged_nights, load, matching_cells
from trainables.common.errors import InputError


def accept(
    cell: Annotated[str, typer.Argument(help='"RECIPE on TASK: METRIC", or "RECIPE on TASK".')],
    why: Annotated[str, typer.Option(help="Why the change is intended.")],
    file: Annotated[
        Path | None, typer.Option(help="The nightly file; default: the shipped benchmark.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", help="First night of the new series; default: where it began."),
    ] = None,
) -> int:
    """Record that a change is intended: the cell's series starts anew."""
    benchmark = load(file)
    judged = judged_nights(benchmark)
    if not why.strip():
        raise InputError("--why: give a reason, for those who read the series later")
    told = chain.from_iterable(judged[-1][1].findings.values())
    known = [*all_cells([record for record, _ in judged]), *(found.cell for found in told)]
    matching_cells(cell, known)
    changed = nightly.CellKey.parse(cell)
    names = [record.night for record, _ in judged]
    night = since or _first_night(judged[-1][1], changed, names)
    if night not in names:
        raise InputError(f"--from: {night!r} has no verdict; the last is {names[-1]}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = nightly.Acceptance(changed, night, " ".join(why.split()), now)
    benchmark.book(fresh=False).accept(entry)
    echo(f"{changed}: the series starts anew on {night}")
    return 0


def _first_night(verdict: nightly.Verdict, cell: nightly.CellKey, names: Sequence[str]) -> str:
    """Return the night on which a cell's change began, by the last verdict; else that night.

    ``names`` are those of all nights, in the order of running: the clock may have been set back.
    """
    found = chain.from_iterable(verdict.findings.values())
    since = [f.since for f in found if cell in (f.cell, f.cell._replace(metric="")) and f.since]
    places = {night: place for place, night in enumerate(names)}
    return min(since, key=lambda night: places.get(night, -1), default=verdict.night)
