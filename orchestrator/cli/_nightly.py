"""``calsweep nightly``: a fixed benchmark, run every night."""

from __future__ import annotations

import re
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from orchestrator.cli._console import complain, echo, output
from trainables.errors import InputError
from trainables.paths import local_path

if TYPE_CHECKING:
    from orchestrator.nightly import Installation, KubernetesOptions, Nightly

__all__ = ["nightly"]

FINE, ALARM, COULD_NOT_RUN = 0, 3, 4
NIGHT = re.compile(r"\d{4}-\d{2}-\d{2}(\.\d+)?")


class Scheduler(StrEnum):
    """What starts the nights."""

    systemd = "systemd"
    cron = "cron"
    kubernetes = "kubernetes"
    ray = "ray"


nightly = typer.Typer(
    help="Run a fixed benchmark every night, and tell people when something got worse.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[
    Path | None,
    typer.Argument(help="The nightly file; the benchmark that ships with calsweep if left out."),
]
TimeZone = Annotated[
    str | None, typer.Option(help="Such as Europe/Berlin; default: the machine's own.")
]
Address = Annotated[
    str | None, typer.Option(help="A Ray cluster to join, such as auto; default: this machine.")
]
JobServer = Annotated[
    str | None,
    typer.Option(help="Submit the night as a job to the Ray cluster at http://HOST:8265."),
]


@nightly.command()
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
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> int:
    """Run one night, or go on with one that broke off: exit 0 fine, 3 alarm, 4 could not run."""
    benchmark = _load(file)
    from orchestrator.nightly import BusyError, make_schedule, publish_failure

    if night is not None and not NIGHT.fullmatch(night):
        raise InputError(f"--night: {night!r} is not YYYY-MM-DD or YYYY-MM-DD.N")
    known = _installed(benchmark)
    default = known.schedule if known else make_schedule("00:00")
    schedule = make_schedule(at, time_zone) if at else default
    name = night or schedule.night_of(datetime.now(UTC))
    try:
        if job_server is not None:
            return _submit(benchmark, name, job_server)
        return _run(benchmark, name, address, quiet)
    except BusyError as error:
        _complain(str(error))
    except Exception as error:  # noqa: BLE001 - nobody watches: every failure is told to people
        reason = _one_line(error)
        _complain(f"could not run: {reason}")
        for problem in [
            *_keep_traceback(benchmark, error),
            *publish_failure(benchmark, name, reason),
        ]:
            _complain(problem)
    return COULD_NOT_RUN


def _load(file: Path | None) -> Nightly:
    from orchestrator.nightly import benchmark_file, load_nightly

    return load_nightly(file or benchmark_file())


def _installed(benchmark: Nightly) -> Installation | None:
    from orchestrator.nightly import installation

    return installation(benchmark)


def _run(benchmark: Nightly, name: str, address: str | None, quiet: bool) -> int:
    from orchestrator.nightly import headline, run_night

    console = None if quiet else Console(stderr=True)
    outcome = run_night(benchmark, name, address=address, console=console)
    for message in outcome.messages:
        _complain(message)
    echo(headline(benchmark.name, name, outcome.verdict))
    for found in outcome.verdict.alarms:
        echo(f"  {found.cell}: {found.text}")
    if not outcome.fresh:
        echo("  (this night has run before; it was not run again)")
    echo(f"  {outcome.night.folder / 'report.md'}")
    return ALARM if outcome.verdict.raised else FINE


def _submit(benchmark: Nightly, name: str, server: str) -> int:
    from orchestrator.nightly import submit_night

    command = ("calsweep", "nightly", "run", str(benchmark.path), "--night", name)
    job, code = submit_night(
        server, benchmark.name, name, (*command, "--address", "auto", "--quiet")
    )
    echo(f"job {job} on {server} ended with exit code {code}")
    return code


def _complain(text: str) -> None:
    complain(text, "calsweep nightly")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def _keep_traceback(benchmark: Nightly, error: Exception) -> list[str]:
    """Write down what only a programmer can read; return lines for the person watching."""
    if isinstance(error, InputError):
        return []
    path = benchmark.folder / "error.txt"
    try:
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError as problem:
        return [f"{path} cannot be written: {problem.strerror}"]
    return [f"details: {path}"]


@nightly.command()
def install(
    at: Annotated[str, typer.Option(help="Time of the day, HH:MM.")],
    file: File = None,
    scheduler: Annotated[
        Scheduler | None,
        typer.Option("--with", help="What starts the nights; default: systemd, else cron."),
    ] = None,
    time_zone: TimeZone = None,
    address: Address = None,
    job_server: JobServer = None,
    image: Annotated[str | None, typer.Option(help="Kubernetes: image with calsweep.")] = None,
    kubectl_image: Annotated[
        str, typer.Option(help="Kubernetes: image with kubectl, as your cluster finds it.")
    ] = "kubectl:1.34",
    claim: Annotated[
        str | None, typer.Option(help="Kubernetes: PersistentVolumeClaim for the storage.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Kubernetes: where it lives.")] = "default",
    out: Annotated[Path | None, typer.Option(help="Kubernetes: where the manifests go.")] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print what would be written, and write nothing.")
    ] = False,
) -> int:
    """Have the system start the benchmark every night."""
    from orchestrator._jobs import check_cluster
    from orchestrator.nightly import install as activate
    from orchestrator.nightly import preview

    benchmark = _load(file)
    if address:
        check_cluster(address)
    kind = scheduler.value if scheduler else None
    wanted: dict[str, Any] = {
        "options": ("--address", address) if address else (),
        "job_server": job_server,
        "cluster": _cluster(image, claim, namespace, kubectl_image),
    }
    if show:
        echo(preview(benchmark, at, time_zone, kind, **wanted), nl=False)
        return FINE
    for line in activate(benchmark, at, time_zone, kind, out=out, **wanted):
        echo(line)
    return FINE


def _cluster(
    image: str | None, claim: str | None, namespace: str, kubectl_image: str
) -> KubernetesOptions | None:
    from orchestrator.nightly import KubernetesOptions

    return KubernetesOptions(image, claim, namespace, kubectl_image) if image and claim else None


@nightly.command()
def uninstall(file: File = None) -> int:
    """Remove the schedule; nights, verdicts and summaries stay."""
    from orchestrator.nightly import uninstall as remove

    benchmark = _load(file)
    for line in remove(benchmark) or [f"nothing was scheduled for {benchmark.name}"]:
        echo(line)
    return FINE


@nightly.command()
def status(
    file: File = None,
    last: Annotated[int, typer.Option(min=1, help="Nights to list.")] = 7,
    metric: Annotated[str, typer.Option(help="Whose trend is drawn.")] = "ece",
) -> int:
    """Show the last verdicts, the next start, and trends as small charts."""
    from orchestrator.cli._nightly_tables import trends, verdicts
    from orchestrator.nightly import Book

    benchmark = _load(file)
    book, known = Book(benchmark.folder), _installed(benchmark)
    console = output()
    if known is None:
        console.print(f"{benchmark.name}: not scheduled from here", markup=False)
    else:
        following = known.schedule.next_start(datetime.now(UTC))
        console.print(
            f"{benchmark.name}: by {known.scheduler}, next {following:%Y-%m-%d %H:%M %Z}",
            markup=False,
        )
    console.print(verdicts(book, last))
    console.print(trends(book, metric, benchmark.model.history))
    return FINE


@nightly.command()
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
    from orchestrator.cli._nightly_tables import chosen_cells
    from orchestrator.nightly import Book, plotted, to_csv

    benchmark = _load(file)
    judged = Book(benchmark.folder).judged()
    if not judged:
        raise InputError(f"{benchmark.name} has no night with a verdict in {benchmark.folder}")
    records = [record for record, _ in judged]
    cells = chosen_cells(records, cell or [])
    alarmed = {
        wanted: [
            number
            for number, (_, verdict) in enumerate(judged)
            if any(found.cell == wanted for found in verdict.alarms)
        ]
        for wanted in cells
    }
    folder = local_path(out or benchmark.folder, "--out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "history.csv").write_text(to_csv(records, cells), encoding="utf-8")
        plotted(records, cells, alarmed).savefig(folder / "history.png", dpi=110)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error}") from error
    echo(f"{len(records)} nights, {len(cells)} series: {folder / 'history.csv'}, .png")
    return FINE


@nightly.command()
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
    from orchestrator.cli._nightly_tables import accepted

    entry = accepted(_load(file), cell, why, since)
    echo(f"{entry.cell}: the series starts anew on {entry.night}")
    return FINE
