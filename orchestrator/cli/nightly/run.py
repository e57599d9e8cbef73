"""``calsweep nightly run``: one night."""

import re
import traceback
from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from orchestrator import nightly
from orchestrator.cli._console import complain, echo
from orchestrator.cli._options import Quiet
from orchestrator.cli.nightly.common import File, TimeZone, load
from trainables.common.errors import InputError

_complain = partial(complain, command="calsweep nightly")
NIGHT = re.compile(r"\d{4}-\d{2}-\d{2}(\.\d+)?")

Address = Annotated[
    str | None, typer.Option(help="A Ray cluster to join, such as auto; default: this machine.")
]
JobServer = Annotated[
    str | None,
    typer.Option(help="Submit the night as a job to the Ray cluster at http://HOST:8265."),
]


def run(
    file: File = None,
    night: Annotated[
        str | None, typer.Option(help="The night, YYYY-MM-DD or YYYY-MM-DD.N; default: tonight.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="When nights begin, HH:MM; default: as installed, or 00:00.")
    ] = None,
    time_zone: TimeZone = None,
    address: Address = None,
    job_server: JobServer = None,
    quiet: Quiet = False,
) -> int:
    """Run one night, or resume one that broke off: exit 0 fine, 3 alarm, 4 could not run."""
    benchmark = load(file)
    if night is not None:
        _check_night(night)
    known = nightly.installation(benchmark)
    if known and not at:
        at, time_zone = known.at, time_zone or known.time_zone
    name = night or nightly.make_schedule(at or "00:00", time_zone).night_of(datetime.now(UTC))
    try:
        if job_server is not None:
            return _submit(benchmark, name, job_server)
        return _run(benchmark, name, address, quiet)
    except nightly.BusyError as error:
        _complain(str(error))
    except Exception as error:  # noqa: BLE001 - nobody watches: every failure is told to people
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
        raise InputError(f"--night: {night!r} is of no date that exists: {error}") from error


def _run(benchmark: nightly.Nightly, name: str, address: str | None, quiet: bool) -> int:
    console = None if quiet else Console(stderr=True)
    outcome = nightly.run_night(benchmark, name, address=address, console=console)
    for message in outcome.messages:
        _complain(message)
    echo(nightly.headline(benchmark.name, name, outcome.verdict))
    for group in nightly.grouped(outcome.verdict.alarms):
        echo(f"  {nightly.told(group)}")
    if not outcome.fresh:
        echo("  (this night has run before; it was not run again)")
    echo(f"  {outcome.night.folder / 'report.md'}")
    return outcome.verdict.code


def _submit(benchmark: nightly.Nightly, name: str, server: str) -> int:
    command = ("calsweep", "nightly", "run", str(benchmark.path), "--night", name)
    options = ("--address", "auto", "--quiet")
    job, code = nightly.submit_night(server, benchmark.name, name, (*command, *options))
    echo(f"job {job} on {server} ended with exit code {code}")
    return code


def _keep_traceback(benchmark: nightly.Nightly, error: Exception) -> list[str]:
    """Write down what only a programmer can read; return lines for the person watching."""
    if isinstance(error, InputError):
        return []
    path = benchmark.folder / "error.txt"
    try:
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError as problem:
        return [f"{path} cannot be written: {problem.strerror}"]
    return [f"details: {path}"]
