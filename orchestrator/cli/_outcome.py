"""Run a sweep, print its results, and write or deliver its tables and report."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.cli._console import output, progress_bar
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import SweepSpec
from orchestrator.sweep.tracking_uri import mlflow_uri
from orchestrator.tables.arrange import build_table
from orchestrator.tables.make import render, to_rich
from orchestrator.view import ReportSource, from_folder, write_report
from trainables.common.errors import InputError, require_addresses
from trainables.common.files import writing
from trainables.common.paths import bucket_address, redacted, sync_command
from trainables.common.words import duration

if TYPE_CHECKING:
    from orchestrator.running.run import SweepOutcome
    from orchestrator.tables.table import ComparisonTable

FORMATS = {"markdown": "md", "csv": "csv", "latex": "tex", "html": "html"}
EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}


def run_and_show(
    spec: SweepSpec,
    resume: bool = False,
    fresh: bool = False,
    address: str | None = None,
    quiet: bool = False,
    take: bool = False,
) -> int:
    """Run a sweep with ``run_sweep``, print its results and return the exit code."""
    require_addresses()
    from orchestrator.cluster.interrupt import interrupt_on_sigterm
    from orchestrator.running.run import run_sweep

    console = None if quiet else Console(stderr=True)
    outcome = run_sweep(
        spec, resume=resume, fresh=fresh, address=address, console=console, take=take
    )
    try:
        with interrupt_on_sigterm():
            return show_outcome(outcome, address)
    except KeyboardInterrupt:  # The next run writes the remaining tables and the report.
        return show_outcome(replace(outcome, status="interrupted"), address)


def show_outcome(outcome: SweepOutcome, address: str | None = None) -> int:
    """Print and write the results of an ended sweep, or print how to resume an interrupted one.

    Returns:
        The exit code: 1 if the sweep failed, or its tables or report could not be written; 130 if
        it was interrupted; else 0.
    """
    whole = True
    if outcome.status == "interrupted":
        spec = outcome.spec
        command = ["calsweep", "run", "--resume", spec.name, "--storage", spec.storage]
        command += ["--address", address] if address else []
        output().print(f"sweep {spec.name} was interrupted; resume it with: {shlex.join(command)}")
    else:
        table, folder = build_table(outcome.results), SweepFolder.of(outcome.spec)
        output().print(to_rich(table))
        output().print(_where(outcome))
        whole &= _done("no tables", lambda: _write_tables(table, folder))
        whole &= _done("no report", lambda: _report(folder))
        if outcome.tracked:
            uri = outcome.spec.tracking_uri
            _done("tables and report are not tracked", lambda: track(outcome.spec, folder, uri))
        if folder.bucket is not None and folder.bucket.share():
            output().print(
                f"some files have not reached the bucket; deliver them with: "
                f"{sync_command(folder.path)}"
            )
    if not outcome.tracked:
        reason = f": {outcome.fault}" if outcome.fault else ""
        output().print(
            f"not everything has reached {redacted(outcome.spec.tracking_uri)}{reason}; "
            f"deliver the rest with: calsweep storage sync {shlex.quote(str(outcome.journal))}"
        )
    return EXIT_CODES[outcome.status] or int(not whole)


def _done(fault: str, action: Callable[[], object]) -> bool:
    """Return True if the action succeeds; else print ``fault`` and the reason in one line."""
    try:
        action()
    except InputError as error:
        output().print(f"{fault}: {error}")
        return False
    return True


def _write_tables(table: ComparisonTable, folder: SweepFolder) -> None:
    for format, ending in FORMATS.items():
        path = folder.table(ending)
        with writing(path):
            path.write_text(render(table, format), encoding="utf-8")


def _report(folder: SweepFolder) -> None:
    folder.fetch(files=True)  # Other machines may have stored diagrams of the report.
    output().print(f"report: {_relative(write_page(from_folder(folder), folder.report))}")


def write_page(source: ReportSource, path: Path, baseline: str | None = None) -> Path:
    """Write the report of a sweep, with progress on stderr; see ``write_report``."""
    with progress_bar("writing the report") as show:
        return write_report(source, path, baseline, show)


def track(spec: SweepSpec, folder: SweepFolder, uri: str) -> None:
    """Deliver the sweep file, tables and report of an ended sweep to a tracker, as a separate run.

    Nothing is delivered if the sweep was interrupted, has not ended or has no table.
    """
    from orchestrator.tracking import SingleRun, deliver_run

    ledger, table = read_ledger(folder.journal), folder.table("md")
    if ledger.ended is None or ledger.status == "interrupted" or not table.is_file():
        return
    places = (folder.spec_file, *map(folder.table, FORMATS.values()), folder.report)
    named = [path for path in places if path.is_file()]
    for path in named:
        if path.is_symlink():
            raise InputError(f"{path} is a link to a file that may be private; replace the link")
    run = SingleRun(
        "outcome",
        f"{spec.name}: tables and report",
        "FINISHED" if ledger.status == "finished" else "FAILED",
        started=ledger.began,
        ended=ledger.ended,
        tags=spec.tags,
        files={path.name: path for path in named},
    )
    deliver_run(uri, spec.name, "outcome", run, folder.storage.tracked_files)


def _where(outcome: SweepOutcome) -> str:
    spec = outcome.spec
    place = _relative(SweepFolder.of(spec).path)
    return (
        f"{duration(outcome.seconds)} · tracking: {_tracking(spec.tracking_uri)} · "
        f"artifacts: {_relative(Storage.of(spec).artifacts)} · "
        f"configurations: {place}/chosen · tables: {place}/table.md, .csv, .tex, .html"
    )


def _tracking(uri: str) -> str:
    """Return the command that shows an MLflow database, or the address of another tracker."""
    if not uri.startswith(("sqlite", "postgresql")):
        return redacted(uri)
    return f"mlflow ui --backend-store-uri {shlex.quote(mlflow_uri(redacted(uri)))}"


def _relative(path: Path) -> str:
    for folder in path.parents:
        if address := bucket_address(folder):
            return f"{address}/{path.relative_to(folder)}"
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
