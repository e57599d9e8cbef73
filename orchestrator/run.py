"""Runs a sweep: plan, search inside Ray Tune, one look at test data, results."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import yaml
from filelock import FileLock, Timeout
from rich.console import Console

from orchestrator._cluster import (
    joined_cluster,
    require_room,
    require_shared,
    several_machines,
)
from orchestrator._evaluate import Evaluation, evaluate, measured, pending_evaluations
from orchestrator._interrupt import ended_soon, terminable
from orchestrator._jobs import check_cluster
from orchestrator._progress import say
from orchestrator._state import SweepState
from orchestrator.journal import Journal, read_events
from orchestrator.plan import Plan, make_plan
from orchestrator.provenance import provenance
from orchestrator.results import StudyResult
from orchestrator.spec import SweepSpec, TaskSpec, is_sweep_name, parse_sweep
from orchestrator.tracking import (
    ShipperProcess,
    check_login,
    listens,
    results_from_journal,
    start_shipper,
)
from trainables.artifacts import ArtifactStore
from trainables.data import PreparedData, prepare
from trainables.errors import InputError
from trainables.paths import storage_folder
from trainables.suites import find_suite, prepare_suite

__all__ = ["SweepOutcome", "load_existing", "prepare_data", "run_sweep"]

JOURNAL = "journal.jsonl"
SPEC = "sweep.yaml"
LOCK = "run.lock"
STALLED_SECONDS = 45.0  # A tracking server that takes nothing for so long counts as away.
# What makes two specifications the same sweep; resources and places may differ when it resumes.
IDENTITY = ("name", "tasks", "recipes", "variants", "search", "seeds")


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep left behind.

    Attributes:
        spec: The sweep as it ran.
        status: ``finished``, ``failed`` (a study has no finished trial) or ``interrupted``.
        results: One entry a row, in table order.
        tracked: Whether everything has reached the tracking server.
        seconds: Wall time of this run.
    """

    spec: SweepSpec
    status: str
    results: tuple[StudyResult, ...]
    tracked: bool
    seconds: float

    @property
    def journal(self) -> Path:
        """Return the journal's path."""
        return self.spec.directory / JOURNAL


def prepare_data(spec: SweepSpec, console: Console | None = None) -> dict[str, PreparedData]:
    """Read, split and store the data of every task; returns task name to prepared data.

    Suites are stored beside them.

    Args:
        spec: The checked sweep.
        console: Where progress is shown; None for nowhere.

    Raises:
        InputError: If a data set or a suite is absent or damaged, or a suite does not fit its task;
            the text names the task.
    """
    prepared = {}
    for number, task in enumerate(spec.tasks):
        try:
            prepared[task.id] = _prepare_task(task, spec, console)
        except InputError as error:
            raise InputError(f"tasks[{number}] ({task.id}): {error}") from error
    return prepared


def _prepare_task(task: TaskSpec, spec: SweepSpec, console: Console | None) -> PreparedData:
    root = Path(spec.data_root)

    def told(name: str) -> Callable[[str], None]:
        return lambda text: say(console, f"preparing {name}: {text}")

    place = spec.storage_path / "data"
    data = prepare(task.dataset, root, task.split_spec, place, notice=told(task.dataset))
    for name in task.suites:
        find_suite(name, root).check(data.info)
    for name in task.suites:
        prepare_suite(name, root, data, notice=told(name))
    return data


def load_existing(name: str, storage: str) -> SweepSpec:
    """Return the specification of a sweep that has been started in a storage folder.

    Raises:
        InputError: If there is none of that name; the text lists those there are.
    """
    folder = storage_folder(storage) / "sweeps"
    path = folder / name / SPEC
    if not is_sweep_name(name) or not path.is_file():
        known = sorted(entry.parent.name for entry in folder.glob(f"*/{SPEC}"))
        listing = ", ".join(known) or "none"
        raise InputError(f"no sweep {name!r} in {folder}; there are: {listing}")
    spec = parse_sweep(path.read_text(encoding="utf-8"), str(path))
    return spec.model_copy(update={"storage": storage})


def run_sweep(
    spec: SweepSpec,
    *,
    resume: bool = False,
    fresh: bool = False,
    address: str | None = None,
    console: Console | None = None,
) -> SweepOutcome:
    """Run a sweep to its end, or go on with one that was interrupted.

    A sweep that has been run before with the same specification goes on where it ended; trials
    that finished are not computed again.

    Args:
        spec: The checked sweep.
        resume: Insist that the sweep has been started before.
        fresh: Start over under the next free name instead of going on.
        address: A Ray cluster to join; None for Ray on this machine alone.
        console: Where progress is shown; None for nowhere.

    Raises:
        InputError: If the data, the storage, the name, the cluster's address or the login on the
            tracking server cannot be used; nothing is started then.
    """
    started = time.monotonic()
    if address is not None:
        check_cluster(address)
    if fresh:
        spec = _next_free(spec)
    _check_same(spec, resume)
    plan = make_plan(spec)
    check_login(spec.tracking_uri)
    with _owned(spec), terminable():
        data = prepare_data(spec, console)
        _store_spec(spec)
        return _run(plan, data, address, console, started)


def _run(
    plan: Plan,
    data: dict[str, PreparedData],
    address: str | None,
    console: Console | None,
    started: float,
) -> SweepOutcome:
    spec = plan.spec
    path = spec.directory / JOURNAL
    history = read_events(path)[0] if path.exists() else []
    sweep_id = next((e["sweep_id"] for e in history if "sweep_id" in e), uuid.uuid4().hex)
    store = ArtifactStore(spec.storage_path / "artifacts")
    if spec.mirror is not None:
        store.mirror_to(spec.mirror)
    with Journal(path) as journal:
        journal.append(_started_event(spec, sweep_id))
        shipper = start_shipper(path, spec.tracking_uri, spec.storage_path / "mlflow-artifacts")
        before, _ = shipper.progress()
        status = "interrupted"
        try:
            usable = _usable(store, history)
            state = SweepState(plan, sweep_id, data, journal.append, history, usable)
            status = _search_and_evaluate(state, journal, store, address, console, history)
        except KeyboardInterrupt:
            say(console, "stopped")
        finally:
            journal.append({"event": "sweep_ended", "status": status})
            say(console, "delivering the last runs to the tracking server")
            tracked = _drained(shipper, spec.tracking_uri, before, status)
    if status != "interrupted":
        _deliver_copies(store, spec, console)
    results = tuple(results_from_journal(read_events(path)[0]))
    return SweepOutcome(spec, status, results, tracked, time.monotonic() - started)


def _deliver_copies(store: ArtifactStore, spec: SweepSpec, console: Console | None) -> None:
    """Send to the mirror what it did not take during the sweep, and say what still waits."""
    waiting = store.deliver()
    if waiting:
        say(
            console,
            f"artifacts that have not reached the mirror {spec.mirror}: {waiting}; "
            "the next run in this storage sends them",
        )


def _usable(store: ArtifactStore, history: list[dict[str, Any]]) -> Callable[[str, str], bool]:
    """Return what tells whether a stored outcome can be built on, damaged ones being removed.

    Nothing more is built on those of a sweep that finished, so that they are not read again.
    """
    ended = [event["status"] for event in history[-1:] if event["event"] == "sweep_ended"]
    if ended == ["finished"]:
        return store.contains
    return lambda stage, key: store.find(stage, key) is not None


def _drained(shipper: ShipperProcess, uri: str, before: int, status: str) -> bool:
    """Wait until everything is delivered; give up on a server that is away.

    One that has taken nothing since the sweep began (``before`` bytes) and does not listen now is
    away at once. After an interruption the shipper goes on by itself.
    """
    delivered, since = before, time.monotonic()
    while not shipper.wait_drained(2.0):
        now, _ = shipper.progress()
        away = now == before and not listens(uri)
        if status == "interrupted" and not away:
            return False
        if now != delivered:
            delivered, since = now, time.monotonic()
        elif away or time.monotonic() - since > STALLED_SECONDS:
            shipper.stop()
            return False
    return True


def _search_and_evaluate(
    state: SweepState,
    journal: Journal,
    store: ArtifactStore,
    address: str | None,
    console: Console | None,
    history: list[dict[str, Any]],
) -> str:
    evaluated = [event for event in history if event["event"] == "evaluated"]
    if not _all_known(state, evaluated):
        say(console, "starting Ray" if address is None else f"joining Ray at {address}")
        with joined_cluster(address) as ray:
            from orchestrator._tune import search  # Ray must be set up before it is imported

            if several_machines(ray.nodes()):
                require_shared(state.plan.spec)
            if address is None:
                _require_room(state.plan, ray)
            with ended_soon():
                search(state, journal, store, ray, console, growing=address is not None)
            if not state.finished:
                return "interrupted"
            jobs = [job for job in pending_evaluations(state) if not measured(job, evaluated)]
            _evaluate_all(jobs, state.plan.spec, store, ray, journal.append, console)
    hopeless = any(study.chosen is None for study in state.studies.values() if study.plan.row)
    return "failed" if hopeless else "finished"


def _all_known(state: SweepState, evaluated: list[dict[str, Any]]) -> bool:
    """Take over what an earlier run finished; tell whether that was everything."""
    idle = state.take_over()
    return (
        idle
        and state.finished
        and all(measured(job, evaluated) for job in pending_evaluations(state))
    )


def _require_room(plan: Plan, ray: Any) -> None:
    available = ray.cluster_resources()
    for stage in plan.stage_trials():
        wanted = getattr(plan.spec.resources, stage)
        require_room(available, stage, wanted.cpu, wanted.gpu)


def _evaluate_all(
    jobs: list[Evaluation],
    spec: SweepSpec,
    store: ArtifactStore,
    ray: Any,
    emit: Callable[[dict[str, Any]], None],
    console: Console | None,
) -> None:
    """Measure the chosen configurations, after every search trial has ended."""
    say(console, f"measuring {len(jobs)} chosen configurations on test data")
    wanted = spec.resources.train
    remote = ray.remote(num_cpus=1, num_gpus=wanted.gpu)(evaluate)
    folder = str(spec.directory / "chosen")
    pending = [remote.remote(str(store.root), folder, job, wanted.gpu) for job in jobs]
    while pending:
        done, pending = ray.wait(pending)
        try:
            events = ray.get(done)
        except InputError as error:
            # Ray adds the worker's whole traceback to the text.
            raise getattr(error, "cause", error) from error
        for event in events:
            emit(event)


def _started_event(spec: SweepSpec, sweep_id: str) -> dict[str, Any]:
    return {
        "event": "sweep_started",
        "sweep": spec.name,
        "sweep_id": sweep_id,
        "spec": spec.model_dump(mode="json"),
        "provenance": provenance(),
    }


def _next_free(spec: SweepSpec) -> SweepSpec:
    number, candidate = 1, spec
    while (candidate.directory / SPEC).exists():
        number += 1
        candidate = spec.model_copy(update={"name": f"{spec.name}-{number}"})
    return candidate


def _check_same(spec: SweepSpec, resume: bool) -> None:
    path = spec.directory / SPEC
    if not path.is_file():
        if resume:
            load_existing(spec.name, spec.storage)
        return
    before, now = _identity(load_existing(spec.name, spec.storage)), _identity(spec)
    for key in IDENTITY:
        if before[key] != now[key]:
            raise InputError(
                f"sweep {spec.name!r} exists in {spec.directory} with another `{key}`; "
                "give this one another name, or start it with --fresh"
            )


def _identity(spec: SweepSpec) -> dict[str, Any]:
    """Return what makes a sweep another one; further suites measure what was chosen once more."""
    return spec.model_dump(
        mode="json", include=set(IDENTITY), exclude={"tasks": {"__all__": {"suites"}}}
    )


def _store_spec(spec: SweepSpec) -> None:
    """Write the specification, whole or not at all: without it the sweep cannot be resumed."""
    path = spec.directory / SPEC
    draft, document = path.with_suffix(".tmp"), spec.model_dump(mode="json")
    try:
        draft.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def _owned(spec: SweepSpec) -> Iterator[None]:
    """Hold the sweep's folder for this process alone.

    Raises:
        InputError: If another process runs this sweep, or the folder cannot be written.
    """
    owner = spec.directory / "owner"
    lock = FileLock(spec.directory / LOCK, timeout=0)
    try:
        spec.directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        owner.write_text(_oneself(), encoding="utf-8")
    except Timeout as error:
        text = owner.read_text(encoding="utf-8") if owner.exists() else "another process"
        raise InputError(f"sweep {spec.name!r} is being run by {text}") from error
    except OSError as error:
        raise InputError(f"storage {spec.directory} cannot be written: {error}") from error
    try:
        yield
    finally:
        lock.release()


def _oneself() -> str:
    """Name this process for another one that finds the sweep taken."""
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    user = psutil.Process().username()
    return f"{user} on {os.uname().nodename}, process {os.getpid()}, since {since}"
