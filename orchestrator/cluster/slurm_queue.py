"""The state of a sweep's job in SLURM, and why it waits or failed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.storage.storage import SweepFolder
from trainables.common.errors import InputError
from trainables.common.files import write_whole, writing

if TYPE_CHECKING:
    from orchestrator.storage.status import SweepStatus

JOB, EXIT = "slurm.json", "slurm-exit"
COMMAND_SECONDS = 60.0
WATCH_SECONDS = 2.0  # Time limit of all queries of `status`, `list` or `logs` together.
INTERRUPTED = "130"  # The exit code of a sweep that was cancelled or interrupted.
CANCELLED = "CANCELLED"
LIVE = ("queued", "requeued", "running")
STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "RESV_DEL_HOLD"), "queued"),
    **dict.fromkeys(("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"), "requeued"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"), "running"),
    **dict.fromkeys(("RESIZING", "STAGE_OUT"), "running"),
    "COMPLETED": "finished",
    "CANCELLED": CANCELLED,
}  # Every other state of SLURM is a failure.
OWN = re.compile(r"calsweep: (?!note: )(.+)")
FOREIGN = re.compile(r"((?:slurmstepd|srun): error: .+|[\w.]+(?:Error|Exception): .+)")


@dataclass(frozen=True)
class Job:
    """A job of SLURM; ``state`` as in ``SweepStatus``, empty if unknown."""

    number: str
    state: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


def find_jobs(folders: Iterable[SweepFolder]) -> tuple[dict[str, Job], str]:
    """Return the last job of each sweep that has one, by the sweep's name, and a note.

    The state of a job that ``squeue`` no longer lists comes from ``sacct`` or, if ``sacct`` does
    not know the job, from the file that the job wrote at its end. If ``squeue`` fails, all states
    come from these files and the note says so; else the note is empty.
    """
    wanted = {folder: number for folder in folders if (number := job_number(folder))}
    if not wanted:
        return {}, ""
    end = time.monotonic() + WATCH_SECONDS
    try:
        found, note = _queue(wanted, WATCH_SECONDS), ""
    except InputError as error:
        found = {folder: _ended(folder, it, Job(it)) for folder, it in wanted.items()}
        note = f"{error}; states are from the storage"
    missing = {folder: number for folder, number in wanted.items() if folder not in found}
    why = "SLURM no longer lists it, and it left no exit code"
    if missing and shutil.which("sacct"):
        try:
            found |= _accounting(missing, max(0.1, end - time.monotonic()))
        except InputError as error:
            why = f"{why}; {error}"
    for folder, number in missing.items():
        if folder not in found:
            found[folder] = _ended(folder, number, Job(number, "died", why))
    return {folder.name: job for folder, job in found.items()}, note


def with_job(status: SweepStatus, folder: SweepFolder, job: Job | None) -> SweepStatus:
    """Return the status of a sweep with the number of its SLURM job.

    The job's state and reason replace those of the sweep, unless the job's state is unknown or
    ``finished``, the sweep starts, runs or is paused, or the job has ended and the sweep began
    after that (or finished, and began after the job was submitted).
    """
    if job is None:
        return status
    status = replace(status, job=job.number)
    if status.state in ("starting", "running", "pausing", "paused") or job.state in (
        "",
        "finished",
    ):
        return status
    if job.state not in LIVE:
        ended, submitted = (folder.path / EXIT), (folder.path / JOB).stat().st_mtime
        if _exit(folder, job.number) and status.began > ended.stat().st_mtime:
            return status
        if status.state == "finished" and status.began > submitted:
            return status
    return replace(status, state=job.state, reason=job.reason)


def job_name(folder: SweepFolder) -> str:
    """Return the name of a sweep's jobs in SLURM."""
    return f"calsweep-{folder.name}"


def job_number(folder: SweepFolder) -> str:
    """Return the number of a sweep's last job in SLURM; empty if it has none."""
    file = folder.path / JOB
    if not file.exists():
        return ""
    text = folder.text(file)
    if (found := re.fullmatch(r'\{"job": "([0-9]+)"\}\s*', text)) is None:
        raise InputError(f'{file}: expected {{"job": "NUMBER"}}, got {text[:80]!r}; remove it')
    return found[1]


def queued_job(folder: SweepFolder) -> str:
    """Return the number of a sweep's job if it waits or runs, else an empty string."""
    if not (number := job_number(folder)):
        return ""
    job = _queue({folder: number}, COMMAND_SECONDS).get(folder)
    return number if job is not None and job.state in LIVE else ""


def cancel_job(folder: SweepFolder, number: str) -> None:
    """Cancel a sweep's job in SLURM."""
    call_slurm(["scancel", number])
    with writing(folder.path):  # The script of a job that never ran cannot write this file.
        write_whole(folder.path / EXIT, f"{number} {INTERRUPTED}\n")


def outputs(folder: SweepFolder) -> dict[str, Path]:
    """Return the output files of a sweep's jobs by name, such as ``slurm-12``, sorted."""
    return {path.stem: path for path in sorted(folder.path.glob("slurm-*.out"))}


def own_error(output: Path) -> str:
    """Return the last error in a job's output: the sweep's, else SLURM's or Python's, else ""."""
    lines = SweepFolder(output.parent).text(output).splitlines()
    for pattern in (OWN, FOREIGN):
        if found := [match[1] for line in lines if (match := pattern.match(line))]:
            return found[-1]
    return ""


def _queue(wanted: Mapping[SweepFolder, str], seconds: float) -> dict[SweepFolder, Job]:
    fields = "--Format=JobID:20,Name:200,State:30,RestartCnt:10,Reason:200"
    names = f"--name={','.join(map(job_name, wanted))}"
    lines = call_slurm(["squeue", "--noheader", "--states=all", names, fields], seconds)
    return _jobs(wanted, [line.split(maxsplit=4) for line in lines.splitlines()])


def _accounting(wanted: Mapping[SweepFolder, str], seconds: float) -> dict[SweepFolder, Job]:
    asked = f"--jobs={','.join(wanted.values())}", "--format=JobIDRaw,JobName,State,Restarts,Reason"
    lines = call_slurm(["sacct", "--noheader", "--parsable2", "--allocations", *asked], seconds)
    return _jobs(wanted, [line.split("|") for line in lines.splitlines()])


def _jobs(
    wanted: Mapping[SweepFolder, str], rows: Iterable[Sequence[str]]
) -> dict[SweepFolder, Job]:
    """Return the wanted jobs; rows must match number and name, since SLURM may reuse numbers."""
    folders = {(number, job_name(folder)): folder for folder, number in wanted.items()}
    return {
        folders[number, name]: _job(folders[number, name], number, *words)
        for number, name, *words in rows
        if (number, name) in folders
    }


def _job(folder: SweepFolder, number: str, word: str, restarts: str, reason: str) -> Job:
    word = word.partition(" ")[0]  # "CANCELLED by 1000"
    state, known = STATES.get(word, "failed"), "" if reason == "None" else reason
    if state == "queued" and restarts not in ("0", "N/A"):
        state = "requeued"
    if state == "failed":
        return _failed(folder, number, f"SLURM: {', '.join(filter(None, (word, known)))}")
    return Job(number, state, known if state in ("queued", "requeued") else "")


def _failed(folder: SweepFolder, number: str, reason: str) -> Job:
    error = own_error(folder.path / f"slurm-{number}.out")
    return Job(number, "failed", f"{error} ({reason})" if error else reason)


def _ended(folder: SweepFolder, number: str, unknown: Job) -> Job:
    """Return a job with its state from the file that it wrote at its end, else ``unknown``."""
    words = {"0": "finished", INTERRUPTED: CANCELLED, "requeued": "requeued"}
    code = _exit(folder, number)
    if not code:
        return unknown
    if code not in words:
        return _failed(folder, number, f"exit code {code}")
    return Job(number, words[code])


def _exit(folder: SweepFolder, number: str) -> str:
    """Return the exit code or ``requeued`` from the file that a job wrote at its end, else ""."""
    job, _, code = folder.text(folder.path / EXIT).partition(" ")
    return code.strip() if job == number else ""


def call_slurm(
    command: Sequence[str], seconds: float = COMMAND_SECONDS, env: Mapping[str, str] | None = None
) -> str:
    """Return the output of a SLURM command; ``InputError`` if it fails or exceeds ``seconds``."""
    if shutil.which(command[0]) is None:
        raise InputError(f"SLURM's {command[0]} is not on this machine; use a login node")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words: dict[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace"}
    with subprocess.Popen(command, start_new_session=True, env=env, **pipes, **words) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            text = f"SLURM's {command[0]} has not answered within {seconds:.2g} s"
            raise InputError(text) from error
        finally:
            if process.returncode is None:  # A wrapper's children would hold the pipes open.
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise InputError(f"SLURM's {command[0]} refuses: {' '.join(errors.split())}")
    return str(output).strip()
