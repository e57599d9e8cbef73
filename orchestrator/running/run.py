"""Runs a sweep: plan, search, measurement on test data, results."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from orchestrator.cluster.interrupt import interrupt_on_sigterm
from orchestrator.cluster.jobs import check_cluster
from orchestrator.executors import open_executor
from orchestrator.running.control import Control, Snapshot, say, show_progress, snapshot
from orchestrator.running.data import prepare_data
from orchestrator.running.drive import drive, is_done
from orchestrator.running.preview import refusal
from orchestrator.search.state import SweepState
from orchestrator.storage.events import SweepEnded, SweepStarted
from orchestrator.storage.garbage import Dropper
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import FollowedSweep, Ledger, read_ledger
from orchestrator.storage.machines import Machines
from orchestrator.storage.provenance import keep_plugins, pin_plugins, provenance
from orchestrator.storage.results import StudyResult, cells_of, results_of
from orchestrator.storage.status import time_left
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.executors import EXECUTORS
from orchestrator.sweep.names import LONGEST_NAME
from orchestrator.sweep.plan import Plan, make_plan
from orchestrator.sweep.spec import SweepSpec
from orchestrator.sweep.tracking_uri import tracker_kind
from orchestrator.tracking import ShipperProcess, check_login, listens, preload, start_shipper
from trainables.common.devices import one_thread
from trainables.common.errors import InputError, require_installed
from trainables.common.paths import sweep_command, sync_command
from trainables.common.portable import require_portable
from trainables.common.stages import ArtifactRef
from trainables.common.words import many
from trainables.data import PreparedData
from trainables.data.suites import find_suite, suite_directory
from trainables.stages import validation_rows
from trainables.store.artifacts import ArtifactStore

STALLED_SECONDS = 45.0  # A tracking server that accepts nothing for this long is unavailable.


@dataclass(frozen=True)
class SweepOutcome:
    """The outcome of a sweep.

    Attributes:
        status: ``finished``, ``failed`` (a row of the table has no result) or ``interrupted``.
        results: One result per recipe and task, in the order of the plan.
        tracked: Whether everything has reached the tracking server.
        fault: Why something has not reached it, if known.
        seconds: Wall time of this run.
    """

    spec: SweepSpec
    status: str
    results: tuple[StudyResult, ...]
    tracked: bool
    seconds: float
    fault: str = ""

    @property
    def journal(self) -> Path:
        """Return the journal's path."""
        return SweepFolder.of(self.spec).journal


def run_sweep(
    spec: SweepSpec,
    *,
    resume: bool = False,
    fresh: bool = False,
    address: str | None = None,
    console: Console | None = None,
    take: bool = False,
) -> SweepOutcome:
    """Run a sweep to its end, or resume one that was interrupted.

    A sweep that was run before with the same specification resumes; finished trials are not
    computed again.

    Args:
        spec: The checked sweep.
        resume: Fail if the sweep has not been started before.
        fresh: Start over under the next free name instead of resuming.
        address: A Ray cluster to join; None for this machine.
        console: Shows progress; None for no progress.
        take: Resume a sweep even if it belongs to another user.

    Raises:
        InputError: If the data, the storage, the name, the cluster's address or the login on the
            tracking server cannot be used; nothing has been started then.
    """
    started = time.monotonic()
    kind = EXECUTORS.get(spec.executor)
    require_installed(kind.needs, f"executor: {spec.executor}")
    require_installed(tracker_kind(spec.tracking_uri).needs, "tracking")
    spans_machines = kind.spans_machines
    if address is not None:
        if not spans_machines:
            raise InputError(
                f"executor: {spec.executor} computes on this machine; remove --address"
            )
        check_cluster(address)
    if spec.resources.portable and not spans_machines:
        require_portable()
    if fresh:
        spec = _next_free(spec)
    SweepFolder.of(spec).fetch()
    spec = pin_plugins(spec)
    _check_same(spec, resume)
    plan = make_plan(spec)
    check_login(spec.tracking_uri)
    folder = SweepFolder.of(spec)
    control = Control(folder, partial(say, console))
    with folder.owned(take), interrupt_on_sigterm(), control.watched():
        data = prepare_data(spec, console)
        _check_data(spec, data, read_ledger(folder.journal))
        keep_plugins(spec)
        folder.write_spec(spec)
        with one_thread():
            status, tracked, fault = _run(plan, data, folder, address, console, control)
        results = tuple(results_of(read_ledger(folder.journal)))
    return SweepOutcome(spec, status, results, tracked, time.monotonic() - started, fault)


def _run(
    plan: Plan,
    data: Mapping[str, PreparedData],
    folder: SweepFolder,
    address: str | None,
    console: Console | None,
    control: Control,
) -> tuple[str, bool, str]:
    """Run or resume the sweep; return its status, whether everything is tracked, and why not."""
    spec = plan.spec
    storage, path = Storage.of(spec), folder.journal
    past, store = read_ledger(path), storage.store()
    with folder.open_journal() as journal:
        begun = SweepStarted(
            sweep=spec.name,
            sweep_id=past.sweep_id or uuid.uuid4().hex,
            spec=spec.model_dump(mode="json"),
            provenance=provenance(),
        )
        journal.append(begun)
        shipper = start_shipper(path, spec.tracking_uri, storage.tracked_files, plugins=spec.pinned)
        before, _ = shipper.progress()
        status = "interrupted"
        try:
            usable = _usable(store, past)
            state = SweepState(
                plan,
                begun.sweep_id,
                data,
                journal.append,
                past,
                usable,
                partial(validation_rows, store),
                Dropper(folder, store).drop if spec.keep == "logits" else None,
            )
            if address is not None:
                _share_data(spec, data, store)
            if _compute(state, past, journal, store, address, console, control):
                status = "finished" if state.succeeded else "failed"
        except KeyboardInterrupt:
            say(console, "stopped")
        finally:
            journal.append(SweepEnded(status=status))
            say(console, "delivering the last runs to the tracking server")
            interrupted = status == "interrupted"
            if not interrupted:  # Tables and report are delivered after the runs.
                preload(spec.tracking_uri)
            try:
                tracked = await_delivery(shipper, spec.tracking_uri, before, interrupted)
            except KeyboardInterrupt:  # The next run delivers tables and report.
                say(console, "stopped")
                status, tracked = "interrupted", False
            fault = None if tracked else shipper.fault()
            sealed = journal.delivered()
    if folder.bucket is not None:
        say_undelivered(spec, folder.bucket.share() + store.deliver(), sealed, console)
    return status, tracked, fault.text if fault else ""


def _share_data(spec: SweepSpec, data: Mapping[str, PreparedData], store: ArtifactStore) -> None:
    """Send prepared data to the bucket, if there is one, for the other machines."""
    for task in spec.tasks:
        for own in {data[task.data_name(seed)].directory: None for seed in spec.all_seeds}:
            store.share(own)
            for name in task.suites:
                suite = find_suite(name, spec.data_root)
                store.share(suite_directory(suite, PreparedData.open(own)))
    store.settle()


def say_undelivered(spec: SweepSpec, files: int, sealed: bool, console: Console | None) -> None:
    """Report files that are not in the bucket yet, if any."""
    if files or not sealed:
        path = SweepFolder.of(spec).path
        missing = [many(files, "file")] * bool(files) + ["the end of the journal"] * (not sealed)
        say(
            console,
            f"not in {spec.storage} yet: {' and '.join(missing)}; on this machine "
            f"`{sweep_command('run --resume', path)}` or `{sync_command(path)}` uploads the rest",
        )


def await_delivery(shipper: ShipperProcess, uri: str, before: int, interrupted: bool) -> bool:
    """Wait until everything is delivered; return False if something is not.

    This gives up after ``STALLED_SECONDS`` without progress (five times as long if no request has
    failed: a busy machine may still start the shipper), or at once if a user must repair the
    server, or if the server does not listen and has accepted nothing since this run began, when it
    had ``before`` bytes of the journal. After an interruption this does not wait, because the
    shipper continues in its own process.
    """
    delivered, since = before, time.monotonic()
    while not shipper.wait_drained(2.0):
        now, _ = shipper.progress()
        away = (now == before and not listens(uri)) or _is_blocked(shipper)
        if interrupted and not away:
            return False
        if now != delivered:
            delivered, since = now, time.monotonic()
        elif away or time.monotonic() - since > STALLED_SECONDS * (1 if shipper.fault() else 5):
            shipper.stop()
            return False
    return True


def _is_blocked(shipper: ShipperProcess) -> bool:
    fault = shipper.fault()
    return fault is not None and fault.lasting


def _usable(store: ArtifactStore, past: Ledger) -> Callable[[ArtifactRef], bool]:
    """Return a function that tells whether a stored outcome is usable.

    First remove damaged predictions behind the figures of the table.
    """
    cells = [trial for _, trial in cells_of(past)]
    keys = {key for t in cells for key in (t.predictions, t.default_predictions or t.predictions)}
    lost = [key for key in keys if store.find(ArtifactRef("evaluate", key)) is None]
    if past.status == "finished" and not lost:
        return store.contains
    return lambda ref: store.find(ref) is not None


def _compute(
    state: SweepState,
    past: Ledger,
    journal: Journal,
    store: ArtifactStore,
    address: str | None,
    console: Console | None,
    control: Control,
) -> bool:
    """Run the missing searches and measurements; return False if a search is unfinished."""
    if is_done(state, past, store):
        return True
    with (
        open_executor(state.plan, store, address, control.say_once) as executor,
        show_progress(console) as show,
    ):
        followed = FollowedSweep(SweepFolder(journal.path.parent))

        def progress() -> Snapshot:
            with followed.ledger() as ledger:
                return snapshot(state, time_left(ledger, time.time()))

        show(progress)
        machines = Machines(Storage.of(state.plan.spec), control.say_once)
        changed = partial(show, progress)
        return drive(state, past, store, executor, journal, control, machines, changed)


def _next_free(spec: SweepSpec) -> SweepSpec:
    number, candidate = 1, spec
    while SweepFolder.of(candidate).spec_file.exists():
        number += 1
        end = f"-{number}"
        name = f"{spec.name[: LONGEST_NAME - len(end)]}{end}"
        candidate = spec.model_copy(update={"name": name})
    return candidate


def _check_data(spec: SweepSpec, data: Mapping[str, PreparedData], past: Ledger) -> None:
    """Raise ``InputError`` if a stored sweep was computed on other data than there is now."""
    names = {task.id: task.data_name(spec.all_seeds[0]) for task in spec.tasks}
    for study in past.studies.values():
        now = data[names[study.task]]
        if study.fingerprint not in ("", now.key):
            raise InputError(
                f"sweep {spec.name!r} was computed on other data of {study.task} (hash "
                f"{study.fingerprint[:12]}, now {now.key[:12]}); put the data back, give this "
                "sweep another name, or run the sweep file with --fresh"
            )


def _check_same(spec: SweepSpec, resume: bool) -> None:
    storage, folder = Storage.of(spec), SweepFolder.of(spec)
    if not folder.spec_file.is_file():
        if resume:
            storage.load_spec(spec.name)
        return
    if fault := refusal(spec):
        raise InputError(fault)
