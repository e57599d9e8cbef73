"""``calsweep status``, ``logs``, ``cancel``, ``pause`` and ``resume``: from any machine."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import complain, echo, print_json, print_table
from orchestrator.cli._options import Json, StorageFolder, SweepName, Take
from orchestrator.cli._run import run
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE, sweep_command
from trainables.common.words import HOUR, duration, many

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.cluster.slurm_queue import Job
    from orchestrator.storage.status import SweepStatus
    from orchestrator.storage.storage import SweepFolder

LISTED = 20  # Maximum of failures and of trials that are shown; --json has all.


def status(
    name: Annotated[
        str | None, typer.Argument(help="The sweep's name; default: all.", show_default=False)
    ] = None,
    storage: StorageFolder = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show running trials and their machines, remaining time, failures, and hours by recipe."""
    from orchestrator.cluster.slurm_queue import with_job
    from orchestrator.storage.status import sweep_status
    from orchestrator.storage.storage import Storage

    place = Storage(storage)
    folders = [place.sweep(name)] if name is not None else place.sweeps()
    statuses = [sweep_status(folder) for folder in folders]
    jobs = _jobs(folders)
    found = [
        with_job(each, folder, jobs.get(folder.name))
        for each, folder in zip(statuses, folders, strict=True)
    ]
    if as_json:
        listed = [asdict(each) for each in found]
        print_json(listed if name is None else listed[0])
    elif name is None:
        _list(found)
    else:
        _show(found[0])
        if found[0].state in ("interrupted", "died"):
            echo(f"resume it with: {_about(folders[0], 'run --resume')}")
        if found[0].job:
            output = folders[0].path / f"slurm-{found[0].job}.out"
            where = f"its output: {output}" if output.exists() else "it has no output yet"
            echo(f"SLURM job {found[0].job}; {where}")


def _jobs(folders: "Iterable[SweepFolder]") -> "dict[str, Job]":
    """Return the last SLURM job of each sweep that has one; print a note if SLURM fails."""
    from orchestrator.cluster.slurm_queue import find_jobs

    jobs, note = find_jobs(folders)
    if note:
        complain(f"note: {note}")
    return jobs


def _list(found: "list[SweepStatus]") -> None:
    rows = []
    for each in found:
        done = f"{each.ended}/{each.trials}", f"{each.measured}/{each.measurements}"
        counts = *done, str(len(each.running)), str(len(each.failures))
        rows.append((each.sweep, _state(each), *counts, _left(each), _since(each)))
    headings = ("sweep", "state", "trials", "measured", "running", "failed", "left", "since")
    print_table(headings, rows, ("sweep", "state", "since"))
    for each in found:
        if each.reason and not _waits(each):
            echo(f"{each.sweep}: {each.reason}")


def _waits(each: "SweepStatus") -> bool:
    return each.state in ("queued", "requeued")


def _state(each: "SweepStatus") -> str:
    return f"{each.state} ({each.reason})" if each.reason and _waits(each) else each.state


def _show(each: "SweepStatus") -> None:
    left = f", about {_left(each)} left" if each.seconds_left is not None else ""
    since = f" since {_since(each)}" if each.began else ""
    measured = f"measured {each.measured}/{each.measurements}"
    echo(
        f"{each.sweep}: {_state(each)}{since}, trials {each.ended}/{each.trials}, {measured}{left}"
    )
    if each.reason and not _waits(each):
        echo(each.reason)
    if each.state in ("starting", "running", "pausing", "paused", "died"):
        echo(f"run by {each.owner}")
    rows = []
    for r in each.recipes:
        counts = map(str, (r.ended, r.running, r.failed))
        spent = (duration(hours * HOUR) for hours in (r.hours, r.gpu_hours))
        rows.append((r.recipe, *counts, *spent))
    headings = ("recipe", "ended", "running", "failed", "time", "GPU time")
    if rows:
        print_table(headings, rows, ("recipe",))
    running = [
        (r.trial, r.host or "not placed", "" if r.seconds is None else duration(r.seconds))
        for r in each.running[:LISTED]
    ]
    if running:
        print_table(("runs now", "on", "for"), running, ("runs now", "on"))
    for trial, reason in list(each.failures.items())[:LISTED]:
        echo(f"failed: {trial}: {reason}")
    more = max(0, len(each.running) - LISTED) + max(0, len(each.failures) - LISTED)
    if more:
        echo(f"and {many(more, 'more line')}: --json has them")


def _left(each: "SweepStatus") -> str:
    return "" if each.seconds_left is None else duration(each.seconds_left)


def _since(each: "SweepStatus") -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.began)) if each.began else ""


def logs(
    name: SweepName,
    trial: Annotated[
        str | None,
        typer.Argument(
            help="STUDY|NUMBER as status shows it, a key, or slurm-JOB.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> None:
    """Show the log of a trial or of a SLURM job; if none is named, the last line of each log."""
    from orchestrator.cluster.slurm_queue import outputs
    from orchestrator.storage.ledger import read_ledger
    from orchestrator.storage.status import title

    folder = _existing(name, storage)
    folder.fetch(files=True)
    known = read_ledger(folder.journal).trials.values()
    trials = {title(each): each.key for each in known}
    reused = {title(each) for each in known if each.reused}
    jobs = {f"slurm-{job.number}": job for job in _jobs([folder]).values()}
    files = {called: folder.path / f"{called}.out" for called in jobs}
    files |= outputs(folder) | {it: folder.logs / f"{key}.log" for it, key in trials.items()}
    if trial is None:
        found = {}
        for called, file in files.items():
            lines = folder.text(file).splitlines()
            why = "its outcome was stored already" if called in reused else "nothing was computed"
            last = lines[-1] if lines else f"no log: {why}"
            job = jobs.get(called)  # The log of an ended job ends with Ray's messages.
            ended = job is not None and job.state not in ("", "running", "finished")
            found[called] = str(job) if ended else last
        if as_json:
            print_json([{"log": called, "last_line": last} for called, last in found.items()])
        for called, last in () if as_json else found.items():
            echo(f"{called}: {last}")
        return
    files |= {key: folder.logs / f"{key}.log" for key in trials.values()}
    if trial not in files:
        raise InputError(
            f"sweep {name!r} has no trial {trial!r}; `{_about(folder, 'logs')}` lists all"
        )
    file = files[trial]
    if not file.exists():
        why = "it has not started, or its result was stored already"
        raise InputError(f"trial {trial!r} has no log: {why}")
    lines = folder.text(file).splitlines()
    if as_json:
        print_json({"log": trial, "lines": lines})
    for line in () if as_json else lines:
        echo(line)


def cancel(name: SweepName, storage: StorageFolder = DEFAULT_STORAGE, take: Take = False) -> None:
    """Stop a sweep within seconds; `calsweep run --resume NAME` resumes it."""
    from orchestrator.cluster.slurm_queue import cancel_job, queued_job
    from orchestrator.storage.storage import CANCEL

    folder = _existing(name, storage)
    if not folder.is_owned() and (job := queued_job(folder)):
        cancel_job(folder, job)
        echo(f"{name} left SLURM's queue; resume it with {_about(folder, 'run --resume')}")
        return
    _running(name, storage, take).set_control(CANCEL)
    echo(f"{name} stops within seconds; resume it with {_about(folder, 'run --resume')}")


def pause(name: SweepName, storage: StorageFolder = DEFAULT_STORAGE, take: Take = False) -> None:
    """Start no more trials of a sweep; running ones finish."""
    from orchestrator.storage.storage import PAUSE

    folder = _running(name, storage, take)
    folder.set_control(PAUSE)
    echo(f"{name} starts no more trials; continue it with {_about(folder, 'resume')}")


def resume(name: SweepName, storage: StorageFolder = DEFAULT_STORAGE, take: Take = False) -> int:
    """Continue a paused sweep; resume a stopped one, as `calsweep run --resume NAME` does."""
    from orchestrator.cluster.slurm_queue import queued_job
    from orchestrator.storage.storage import PAUSE

    folder = _existing(name, storage)
    if paused := folder.control() == PAUSE:
        folder.require_own(take)
        folder.set_control("")
    runs = folder.is_owned()
    if not runs and not queued_job(folder):
        return run(resume=name, storage=storage, take=take)
    if not paused:
        raise InputError(f"sweep {name!r} is not paused; `{_about(folder, 'status')}` says more")
    echo(f"{name} continues{'' if runs else ' once its SLURM job runs'}")
    return 0


def _about(folder: "SweepFolder", verb: str) -> str:
    return sweep_command(verb, folder.path)


def _existing(name: str, storage: str) -> "SweepFolder":
    from orchestrator.storage.storage import Storage

    return Storage(storage).started(name)


def _running(name: str, storage: str, take: bool) -> "SweepFolder":
    folder = _existing(name, storage)
    if not folder.is_owned():
        raise InputError(f"sweep {name!r} is not running; `{_about(folder, 'status')}` says more")
    folder.require_own(take)
    return folder
