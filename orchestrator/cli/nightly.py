"""``calsweep nightly``: a fixed benchmark, run every night."""

from __future__ import annotations  # Evaluating some annotations would import PyTorch.

import re
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator import nightly
from orchestrator.cli._console import complain, echo, output, print_json, print_plain
from orchestrator.cli._options import Json, Quiet
from trainables.common.errors import InputError, UnwrittenError, require_addresses
from trainables.common.files import writing
from trainables.common.words import many

File = Annotated[
    Path | None,
    typer.Argument(help="The nightly file; default: the benchmark that comes with calsweep."),
]
RepositoryFolder = Annotated[
    Path | None, typer.Option("--repository", help="The repository's folder.", show_default=False)
]
Address = Annotated[
    str | None, typer.Option(help="A Ray cluster to join, such as auto; default: this machine.")
]
_complain = partial(complain, command="calsweep nightly")
NIGHT = re.compile(r"\d{4}-\d{2}-\d{2}(\.\d+)?")


def load(file: Path | None) -> nightly.Nightly:
    """Read a nightly file; None means the benchmark that comes with calsweep."""
    return nightly.load_nightly(file or nightly.benchmark_file())


def judged_nights(benchmark: nightly.Nightly) -> list[tuple[nightly.NightRecord, nightly.Verdict]]:
    """Return record and verdict of all judged nights; raise ``InputError`` if there are none."""
    judged = benchmark.book().judged()
    if not judged:
        raise InputError(f"{benchmark.name} has no night with a verdict in {benchmark.folder}")
    return judged


def all_cells(records: Sequence[nightly.NightRecord]) -> list[nightly.CellKey]:
    """Return the cells (recipe, task and metric) of these nights, each once."""
    return list(dict.fromkeys(cell for record in records for cell in record.cells))


def matching_cells(text: str, known: Sequence[nightly.CellKey]) -> list[nightly.CellKey]:
    """Return the cells that ``RECIPE on TASK[: METRIC]`` names; raise ``InputError`` if none."""
    try:
        wanted = nightly.CellKey.parse(text)
    except ValueError as error:
        raise InputError(str(error)) from error
    found = [cell for cell in known if wanted in (cell, cell._replace(metric=""))]
    if not found:
        examples = ", ".join(repr(str(cell)) for cell in known[:3])
        raise InputError(f"no cell {text!r}; there are {len(known)}, such as {examples}")
    return found


def run(
    file: File = None,
    night: Annotated[
        str | None, typer.Option(help="The night, YYYY-MM-DD or YYYY-MM-DD.N; default: today.")
    ] = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Run or resume one night; exit codes: 0 fine, 3 alarm, 4 could not run."""
    benchmark = load(file)
    if night is not None:
        _check_night(night)
    name = night or datetime.now(UTC).astimezone().date().isoformat()
    try:
        return _run(benchmark, name, address, quiet, as_json)
    except nightly.BusyError as error:
        _complain(str(error))
    except Exception as error:  # noqa: BLE001 - nobody watches, so report every failure
        text = " ".join(str(error).split())
        reason = text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
        _complain(f"could not run: {reason}")
        kept = _keep_traceback(benchmark, error)
        for problem in [*kept, *nightly.publish_failure(benchmark, name, reason)]:
            _complain(problem)
    return nightly.COULD_NOT_RUN


def _check_night(night: str) -> None:
    if not NIGHT.fullmatch(night):
        raise InputError(f"--night: {night!r} is not YYYY-MM-DD or YYYY-MM-DD.N")
    try:
        date.fromisoformat(night.partition(".")[0])
    except ValueError as error:
        raise InputError(f"--night: {night!r} is not a valid date: {error}") from error


def _run(
    benchmark: nightly.Nightly, name: str, address: str | None, quiet: bool, as_json: bool
) -> int:
    require_addresses()
    console = None if quiet else Console(stderr=True)
    outcome = nightly.run_night(benchmark, name, address=address, console=console)
    for message in outcome.messages:
        _complain(message)
    report = outcome.night.folder / "report.md"
    if as_json:
        named = {"name": benchmark.name, "fresh": outcome.fresh, "report": str(report)}
        print_json({**named, **asdict(outcome.verdict)})
        return outcome.verdict.code
    echo(nightly.headline(benchmark.name, name, outcome.verdict))
    for group in nightly.grouped(outcome.verdict.alarms):
        echo(f"  {nightly.told(group)}")
    if not outcome.fresh:
        echo("  (this night has run before; it was not run again)")
    echo(f"  {report}")
    return outcome.verdict.code


def _keep_traceback(benchmark: nightly.Nightly, error: Exception) -> list[str]:
    """Write the traceback of an unexpected error to a file; return messages about the file."""
    if isinstance(error, InputError):
        return []
    path = benchmark.folder / "error.txt"
    try:
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError as problem:
        return [f"{path} cannot be written: {problem.strerror}"]
    return [f"details: {path}"]


def status(
    file: File = None,
    last: Annotated[int, typer.Option(min=1, help="Nights to list.")] = 7,
    metric: Annotated[str, typer.Option(help="Metric whose trends are drawn.")] = "ece",
    as_json: Json = False,
) -> int:
    """Show the last verdicts, and the trends of a metric."""
    benchmark = load(file)
    book = benchmark.book()
    lines = [(night.name, *_outcome(night)) for night in book.nights()[-last:]]
    records = [record for record, _ in book.judged()][-benchmark.model.history :]
    cells = _cells_of(records, metric)
    if as_json:
        nights = [dict(zip(("night", "status", "text"), line, strict=True)) for line in lines]
        series = [{**cell._asdict(), "values": nightly.series_of(records, cell)} for cell in cells]
        print_json({"name": benchmark.name, "nights": nights, "series": series})
        return 0
    if not lines:
        output().print(f"{benchmark.name}: no night has run yet")
    print_plain(("night", "verdict", "findings"), lines)
    _print_trends(records, cells, metric)
    return 0


def _outcome(night: nightly.Night) -> tuple[str, str]:
    verdict = night.verdict
    if verdict is None:
        given_up = night.facts.get("given_up")
        return ("given up", given_up) if given_up else ("unfinished", "the next start resumes it")
    groups = nightly.grouped(verdict.alarms or verdict.suspicions)
    return verdict.status, "; ".join(nightly.told(group) for group in groups)


def _cells_of(records: Sequence[nightly.NightRecord], metric: str) -> list[nightly.CellKey]:
    """Return the cells of one metric; raise ``InputError`` if only other metrics are recorded."""
    known = all_cells(records)
    cells = [cell for cell in known if cell.metric == metric]
    if known and not cells:
        metrics = ", ".join(dict.fromkeys(cell.metric for cell in known))
        raise InputError(f"--metric: {metric!r} is not recorded; there are: {metrics}")
    return cells


def _print_trends(
    records: Sequence[nightly.NightRecord], cells: Sequence[nightly.CellKey], metric: str
) -> None:
    """Print a sparkline of one metric for each recipe and task, with the last value."""
    rows = []
    for cell in cells:
        values = nightly.series_of(records, cell)
        line, last = nightly.sparkline(values), nightly.figure(cell, values[-1])
        rows.append((cell.recipe, cell.task, line, last))
    print_plain(("recipe", "task", f"{metric}, {many(len(records), 'night')}", "last"), rows)


def history(
    file: File = None,
    cell: Annotated[
        list[str] | None, typer.Option(help="RECIPE on TASK: METRIC; repeatable; default: all.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for history.csv and history.png.")
    ] = None,
) -> int:
    """Write the values of each recipe, task and metric over the nights, as a plot and as CSV."""
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
    folder = out or benchmark.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "history.csv").write_text(nightly.to_csv(records, cells), encoding="utf-8")
        nightly.plotted(records, cells, alarmed).save(folder / "history.png")
    except OSError as error:
        raise UnwrittenError(f"--out {folder}: cannot be written: {error}") from error
    echo(f"{many(len(records), 'night')}, {len(cells)} series: {folder / 'history.csv'}, .png")
    return 0


def accept(
    cell: Annotated[str, typer.Argument(help='"RECIPE on TASK: METRIC", or "RECIPE on TASK".')],
    why: Annotated[str, typer.Option(help="Why the change is intended.")],
    file: Annotated[
        Path | None, typer.Option(help="The nightly file; default: the shipped benchmark.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", help="First night of the new series; default: when it changed."),
    ] = None,
) -> int:
    """Record that a change is intended, so that later nights are compared with the new level."""
    benchmark = load(file)
    judged = judged_nights(benchmark)
    if not why.strip():
        raise InputError("--why: give a reason, for those who read the series later")
    findings = chain.from_iterable(judged[-1][1].findings.values())
    known = [*all_cells([record for record, _ in judged]), *(found.cell for found in findings)]
    matching_cells(cell, known)
    changed = nightly.CellKey.parse(cell)
    names = [record.night for record, _ in judged]
    night = since or _first_night(judged[-1][1], changed, names)
    if night not in names:
        raise InputError(f"--from: night {night!r} has no verdict; the last one is {names[-1]}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = nightly.Acceptance(changed, night, " ".join(why.split()), now)
    benchmark.book(fresh=False).accept(entry)
    echo(f"{changed}: the series restarts on {night}")
    return 0


def _first_night(verdict: nightly.Verdict, cell: nightly.CellKey, names: Sequence[str]) -> str:
    """Return the first night of a cell's change, or the verdict's night if no finding dates it.

    ``names`` are all nights with a verdict, in the order in which they ran.
    """
    found = chain.from_iterable(verdict.findings.values())
    since = [f.since for f in found if cell in (f.cell, f.cell._replace(metric="")) and f.since]
    places = {night: place for place, night in enumerate(names)}
    return min(since, key=lambda night: places.get(night, -1), default=verdict.night)


def gate(
    revision: Annotated[
        str, typer.Argument(metavar="REV", help="The revision to compare with, such as main.")
    ],
    file: File = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the comparison as Markdown.")
    ] = None,
    repository: RepositoryFolder = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Run the benchmark on a revision and on the working tree; exit codes: 0 fine, 3 worse."""
    benchmark = load(file)
    console = None if quiet else Console(stderr=True)
    found = nightly.gate(benchmark, revision, repository, console)
    if out is not None:
        with writing(f"--out {out}:", UnwrittenError):
            out.write_text(found.markdown, encoding="utf-8")
    if as_json:
        print_json({"title": found.title, **asdict(found.verdict)})
        return found.verdict.code
    echo(found.title)
    for group in nightly.grouped(found.verdict.alarms):
        echo(f"  {nightly.told(group)}")
    return found.verdict.code
