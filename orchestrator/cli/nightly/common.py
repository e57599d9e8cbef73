"""What the commands of ``calsweep nightly`` share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import nightly
from trainables.common.errors import InputError

File = Annotated[
    Path | None,
    typer.Argument(help="The nightly file; the benchmark that ships with calsweep if left out."),
]
TimeZone = Annotated[
    str | None, typer.Option(help="Such as Europe/Berlin; default: the machine's own.")
]
RepositoryFolder = Annotated[
    Path | None, typer.Option("--repository", help="The repository's folder.", show_default=False)
]


def load(file: Path | None) -> nightly.Nightly:
    """Read the nightly file that a command names."""
    return nightly.load_nightly(file or nightly.benchmark_file())


def judged_nights(
    benchmark: nightly.Nightly,
) -> list[tuple[nightly.NightRecord, nightly.Verdict]]:
    """Return record and verdict of every night that has both; refuse a benchmark without any."""
    judged = benchmark.book().judged()
    if not judged:
        raise InputError(f"{benchmark.name} has no night with a verdict in {benchmark.folder}")
    return judged


def all_cells(records: Sequence[nightly.NightRecord]) -> list[nightly.CellKey]:
    """Return every cell that one of the nights holds."""
    return list(dict.fromkeys(cell for record in records for cell in record.cells))


def matching_cells(text: str, known: Sequence[nightly.CellKey]) -> list[nightly.CellKey]:
    """Return the cells that ``RECIPE on TASK: METRIC`` or ``RECIPE on TASK`` names, one or more."""
    try:
        wanted = nightly.CellKey.parse(text)
    except ValueError as error:
        raise InputError(str(error)) from error
    found = [cell for cell in known if wanted in (cell, cell._replace(metric=""))]
    if not found:
        examples = ", ".join(repr(str(cell)) for cell in known[:3])
        raise InputError(f"no cell {text!r}; there are {len(known)}, such as {examples}")
    return found
