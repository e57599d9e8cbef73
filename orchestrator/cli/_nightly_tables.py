"""What ``calsweep nightly`` shows of the nights so far."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table

from orchestrator.nightly import (
    Acceptance,
    Book,
    CellKey,
    Night,
    Nightly,
    NightRecord,
    Verdict,
    figure,
    series_of,
    sparkline,
)
from trainables.errors import InputError

__all__ = ["accepted", "chosen_cells", "trends", "verdicts"]


def verdicts(book: Book, last: int) -> Table:
    """Return the last nights with what they came to."""
    table = Table(box=None)
    for heading in ("night", "verdict", "what"):
        table.add_column(heading, overflow="fold")
    for night in book.nights()[-last:]:
        table.add_row(night.name, *_outcome(night))
    return table


def _outcome(night: Night) -> tuple[str, str]:
    verdict = night.verdict
    if verdict is None:
        given_up = night.facts.get("given_up")
        return ("given up", given_up) if given_up else ("unfinished", "the next start goes on")
    found = verdict.alarms or verdict.suspicions
    return verdict.status, "; ".join(str(finding.cell) for finding in found)


def trends(book: Book, metric: str, nights: int) -> Table:
    """Return one metric's series of every recipe, drawn in a line each.

    Raises:
        InputError: If there are nights, but none has that metric.
    """
    records = [record for record, _ in book.judged()][-nights:]
    table = Table(box=None)
    for heading in ("recipe", "task", f"{metric}, {len(records)} nights", "last"):
        table.add_column(heading, overflow="fold")
    cells = [cell for cell in _known(records[-1:]) if cell.metric == metric]
    if records and not cells:
        metrics = ", ".join(dict.fromkeys(cell.metric for cell in _known(records[-1:])))
        raise InputError(f"--metric: {metric!r} is not recorded; there are: {metrics}")
    for cell in cells:
        values = series_of(records, cell)
        table.add_row(cell.recipe, cell.task, sparkline(values), figure(cell, values[-1]))
    return table


def chosen_cells(records: Sequence[NightRecord], texts: Sequence[str]) -> list[CellKey]:
    """Return the cells that texts name, or all there are.

    Raises:
        InputError: If a text names none.
    """
    known = _known(records)
    if not texts:
        return known
    return [cell for text in texts for cell in _matching(text, known)]


def _known(records: Sequence[NightRecord]) -> list[CellKey]:
    return list(dict.fromkeys(cell for record in records for cell in record.cells))


def _matching(text: str, known: Sequence[CellKey]) -> list[CellKey]:
    try:
        wanted = CellKey.parse(text)
    except ValueError as error:
        raise InputError(str(error)) from error
    found = [cell for cell in known if wanted in (cell, CellKey(*cell.pair))]
    if not found:
        examples = ", ".join(repr(str(cell)) for cell in known[:3])
        raise InputError(f"no cell {text!r}; there are {len(known)}, such as {examples}")
    return found


def accepted(benchmark: Nightly, text: str, why: str, since: str | None) -> Acceptance:
    """Record that a change of a cell is intended, and return what was recorded.

    Raises:
        InputError: If there is no such cell or night, or no reason is given.
    """
    book = Book(benchmark.folder)
    judged = book.judged()
    if not judged:
        raise InputError(f"{benchmark.name} has no night with a verdict in {benchmark.folder}")
    if not why.strip():
        raise InputError("--why: give a reason, for those who read the series later")
    _matching(text, _known([record for record, _ in judged]))
    cell = CellKey.parse(text)
    names = [record.night for record, _ in judged]
    night = since or _began(judged[-1][1], cell)
    if night not in names:
        raise InputError(f"--from: {night!r} has no verdict; the last is {names[-1]}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = Acceptance(cell, night, " ".join(why.split()), now)
    book.accept(entry)
    return entry


def _began(verdict: Verdict, cell: CellKey) -> str:
    """Return the night on which a cell's change began, by the last verdict; else that night."""
    found = (*verdict.alarms, *verdict.suspicions, *verdict.improvements)
    since = [f.since for f in found if cell in (f.cell, CellKey(*f.cell.pair)) and f.since]
    return min(since, default=verdict.night)
