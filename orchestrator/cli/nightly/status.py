"""``calsweep nightly status``: verdicts, the next start, and trends."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from orchestrator import nightly
from orchestrator.cli._console import output, print_plain
from orchestrator.cli.nightly.common import File, all_cells, load
from trainables.common.errors import InputError


def status(
    file: File = None,
    last: Annotated[int, typer.Option(min=1, help="Nights to list.")] = 7,
    metric: Annotated[str, typer.Option(help="Whose trend is drawn.")] = "ece",
) -> int:
    """Show the last verdicts, the next start, and trends as small charts."""
    benchmark = load(file)
    book, known = benchmark.book(), nightly.installation(benchmark)
    console, start = output(), "not scheduled from here"
    if known is not None:
        following = nightly.make_schedule(known.at, known.time_zone).next_start(datetime.now(UTC))
        start = f"by {known.scheduler}, next {following:%Y-%m-%d %H:%M %Z}"
    console.print(f"{benchmark.name}: {start}")
    nights = book.nights()[-last:]
    print_plain(("night", "verdict", "what"), [(night.name, *_outcome(night)) for night in nights])
    _print_trends(book, metric, benchmark.model.history)
    return 0


def _outcome(night: nightly.Night) -> tuple[str, str]:
    verdict = night.verdict
    if verdict is None:
        given_up = night.facts.get("given_up")
        return ("given up", given_up) if given_up else ("unfinished", "the next start goes on")
    groups = nightly.grouped(verdict.alarms or verdict.suspicions)
    return verdict.status, "; ".join(nightly.told(group) for group in groups)


def _print_trends(book: nightly.Book, metric: str, nights: int) -> None:
    """Print one metric's series of every recipe, drawn in a line each."""
    records = [record for record, _ in book.judged()][-nights:]
    known = all_cells(records)
    cells = [cell for cell in known if cell.metric == metric]
    if known and not cells:
        metrics = ", ".join(dict.fromkeys(cell.metric for cell in known))
        raise InputError(f"--metric: {metric!r} is not recorded; there are: {metrics}")
    rows = []
    for cell in cells:
        values = nightly.series_of(records, cell)
        line, last = nightly.sparkline(values), nightly.figure(cell, values[-1])
        rows.append((cell.recipe, cell.task, line, last))
    print_plain(("recipe", "task", f"{metric}, {len(records)} nights", "last"), rows)
