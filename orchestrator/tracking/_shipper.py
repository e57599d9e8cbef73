"""Delivers every event of a journal to a tracker, despite crashes and outages.

Some events may be sent twice; the tracker then has them only once.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
from filelock import FileLock, Timeout

from orchestrator.storage.events import SweepStarted
from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.tracking_uri import check_tracking_uri
from orchestrator.tracking import _names as names
from orchestrator.tracking._changes import Change, Changes
from orchestrator.tracking._kinds import open_tracker
from orchestrator.tracking._process import Fault, Memory, note_fault
from orchestrator.tracking._tags import study_name, study_tags, trial_name, trial_tags
from orchestrator.tracking.tracker import (
    BlockedError,
    RefusedError,
    RunQuery,
    Tracker,
    UnreachableError,
)
from trainables.common.errors import InputError
from trainables.common.files import LOCK_MODE, is_inside
from trainables.common.paths import redacted

CHUNK = 4 << 20
"""Bytes of the journal that are delivered before the progress is saved.

Larger chunks need fewer requests, because all changes of a run in a chunk are sent in one request.
"""

SAVE_SECONDS = 2.0
"""Seconds between two saves of the progress within a chunk."""

PATIENCE_ONCE = 5.0
PATIENCE_ORPHANED = 60.0
LONGEST_PAUSE = 5.0
LOCK_WAIT = 10.0

logger = logging.getLogger(__name__)
T = TypeVar("T")


class BusyError(InputError):
    """Another process is delivering the journal."""


@dataclass
class Shipment:
    """The outcome of ``sync``; ``refused`` has one line per request that the tracker refused."""

    events: int = 0
    runs: int = 0
    refused: list[str] = field(default_factory=list)


def sync(
    journal: str | Path,
    uri: str,
    artifact_root: str | Path | None = None,
    interrupted: bool = False,
    *,
    parent_pid: int | None = None,
    poll_seconds: float = 1.0,
) -> Shipment:
    """Turn the events of a journal into runs on a tracker.

    The process may be killed and restarted at any moment: nothing is lost or duplicated. Only one
    process at a time delivers a journal.

    Args:
        journal: The journal; ``shipped.json`` next to it stores the progress of the delivery.
        uri: See ``check_tracking_uri``.
        artifact_root: Folder for the files of a tracker without its own place for them; by default
            ``artifacts`` next to the journal.
        interrupted: No process works on the sweep any more: mark open runs as KILLED.
        parent_pid: Deliver until the sweep has ended or this process has died, and wait during
            outages; runs that are open when it dies are KILLED. By default deliver the existing
            events once.
        poll_seconds: Events are collected for this time and sent together.

    Raises:
        BusyError: Without ``parent_pid``, if another process is delivering the journal; with it,
            this call waits for the other process.
        UnreachableError: If the tracker does not answer (with ``parent_pid``, after that process
            has died).
    """
    journal = Path(journal).resolve()
    check_tracking_uri(uri)
    follows = parent_pid is not None
    is_orphan = (lambda: True) if parent_pid is None else _death_of(parent_pid)
    patience = PATIENCE_ORPHANED if follows else PATIENCE_ONCE
    lock = FileLock(journal.with_name("shipped.lock"), mode=LOCK_MODE)
    try:
        with lock.acquire(timeout=-1 if follows else LOCK_WAIT):
            root = Path(artifact_root) if artifact_root else journal.with_name("artifacts")
            shipper = _Shipper(journal, uri, root)
            while True:
                last = is_orphan()  # Check first, so that the parent's last events are delivered.
                while _patiently(shipper.step, patience, is_orphan):
                    pass
                if last or shipper.over:
                    break
                time.sleep(poll_seconds)
            if interrupted or (follows and is_orphan()):
                _patiently(shipper.close_open, PATIENCE_ORPHANED)
            _patiently(shipper.remove_duplicates, PATIENCE_ORPHANED)
            return shipper.shipment
    except Timeout as error:
        raise BusyError(
            f"journal {journal} is being delivered by another process, such as its running sweep"
        ) from error


def _patiently(
    action: Callable[[], T], patience: float, is_orphan: Callable[[], bool] = lambda: True
) -> T:
    """Retry ``action`` while the tracker does not answer.

    If ``is_orphan()``, give up after ``patience`` seconds, or at once if waiting does not help.
    """
    start, pause = time.monotonic(), 0.5
    while True:
        try:
            return action()
        except UnreachableError as error:
            now = time.monotonic()
            if not is_orphan():
                start = now
            elif isinstance(error, BlockedError) or now - start + pause > patience:
                raise
            logger.warning("%s; trying again in %.1f s", error, pause)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _death_of(pid: int) -> Callable[[], bool]:
    """Return a function that returns True once a process has ended, even if it is a zombie."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return lambda: True

    def dead() -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return dead


class _Shipper:
    """One attempt to deliver one journal to one tracker."""

    def __init__(self, journal: Path, uri: str, artifact_root: Path) -> None:
        self.journal = journal
        self.shipment = Shipment()
        self._uri = uri
        self._artifact_root = artifact_root
        self._tracker: Tracker
        self._connected = self._faulty = False
        self._experiment = ""
        self._memory = Memory()
        self._changes = Changes()
        self._pending: dict[str, Change] = {}
        self._reached = 0
        self._last = 0
        self._chunk_runs = 0
        self._adopted = False
        self._doubtful: set[str] = set()

    @property
    def _ledger(self) -> Ledger:
        return self._changes.ledger

    def step(self) -> bool:
        """Deliver the next chunk of the journal; return whether there may be more.

        Raises:
            UnreachableError: If the tracker does not answer; the next call continues the chunk.
        """
        try:
            more = self._step()
        except UnreachableError as error:
            note_fault(self.journal, Fault(str(error), isinstance(error, BlockedError)))
            self._faulty = True
            raise
        if self._faulty:
            note_fault(self.journal, None)
            self._faulty = False
        return more

    def _step(self) -> bool:
        if not self._connected and not self._connect():
            return False
        before = self._memory.offset
        if not self._pending and self._reached == before:
            events, self._reached = read_events(self.journal, before, CHUNK)
            self.shipment.events += len(events)
            for event in events:
                self._collect(self._changes.apply(event))
                self._last = event.time
            self._chunk_runs = len(self._pending)
        self._deliver_pending()
        if self._reached != before:
            self._memory.offset, self._memory.ahead = self._reached, 0
            self._memory.last = self._last
            self._memory.save(self.journal)
        return self._reached - before >= CHUNK

    @property
    def over(self) -> bool:
        """Return True if, by the events so far, the sweep has ended and was not resumed."""
        return self._ledger.ended is not None

    def close_open(self) -> None:
        """Mark open runs as KILLED, unless the journal has the end of the sweep."""
        if self._ledger.ended is None and not self._pending:
            now = time.time_ns() // 1_000_000
            self._collect(self._changes.close_open(now, "interrupted"))
        self._deliver_pending()

    def remove_duplicates(self) -> None:
        """Delete runs that a server created twice because its first answer got lost."""
        if self._doubtful:
            tags = {names.SWEEP_ID: self._ledger.sweep_id}
            for run in list(self._tracker.runs(RunQuery([self._experiment], tags))):
                if self._memory.runs.get(run.tags[names.KEY]) not in (None, run.id):
                    self._tracker.delete_run(run.id)
            self._doubtful.clear()
        self.shipment.runs = len(self._memory.runs)

    def _connect(self) -> bool:
        """Open the tracker and restore the progress; return False if the journal has no event."""
        if not self.journal.exists():
            return False
        first, _ = read_events(self.journal, 0, limit=1)
        if not first:
            return False
        if not isinstance(first[0], SweepStarted):
            raise InputError(f"journal {self.journal}, line 1: not the start of a sweep")
        self._tracker = open_tracker(self._uri, create=True)
        experiment, created = self._tracker.open_experiment(first[0].sweep, self._artifact_root)
        self._experiment, self._adopted = experiment.id, created
        # The digest excludes the password: a short one could be guessed from it.
        store = f"{redacted(self._uri)} {experiment.id}@{experiment.created}"
        fresh = Memory(hashlib.sha256(store.encode()).hexdigest(), first[0].sweep_id)
        self._memory = Memory.load(self.journal)
        if (self._memory.store, self._memory.sweep_id) != (fresh.store, fresh.sweep_id):
            self._memory = fresh
        if not self._replay(self._memory.offset) or self._memory.last != self._last:
            self._memory, self._changes = fresh, Changes()
        self._reached = self._memory.offset
        self._connected = True
        return True

    def _replay(self, until: int) -> bool:
        """Apply the events up to byte ``until``; return False if the journal does not reach it."""
        place = 0
        while place < until:
            events, end = read_events(self.journal, place, min(CHUNK, until - place))
            if end == place:
                return False
            for event in events:
                self._changes.apply(event)
                self._last = event.time
            place = end
        return place == until

    def _collect(self, changes: list[Change]) -> None:
        for change in changes:
            known = self._pending.setdefault(change.run, change)
            if known is not change:
                known.absorb(change)

    def _deliver_pending(self) -> None:
        """Deliver all collected changes, studies first: their runs are parents of trials' runs."""
        studies = [run for run in self._pending if run in self._ledger.studies]
        trials = [run for run in self._pending if run not in self._ledger.studies]
        if not self._adopted and any(run not in self._memory.runs for run in self._pending):
            self._adopt({names.SWEEP_ID: self._ledger.sweep_id})
            self._adopted = True
        for group in (studies, trials):
            if group:
                self._deliver_group(group)

    def _deliver_group(self, runs: list[str]) -> None:
        """Deliver the changes of some runs in parallel; stop at the first failure."""
        saved = time.monotonic()
        with ThreadPoolExecutor(self._tracker.lanes) as pool:
            futures = [pool.submit(self._deliver, run, self._pending[run]) for run in runs]
            try:
                for future in as_completed(futures):
                    future.result()
                    if time.monotonic() - saved > SAVE_SECONDS:
                        share = 1 - len(self._pending) / max(1, self._chunk_runs)
                        self._memory.ahead = int(share * (self._reached - self._memory.offset))
                        self._memory.save(self.journal)
                        saved = time.monotonic()
            finally:
                for future in futures:
                    future.cancel()

    def _deliver(self, run: str, change: Change) -> None:
        self._guarded(run, lambda: self._send(run, change))
        del self._pending[run]

    def _send(self, run: str, change: Change) -> None:
        tracker = self._tracker
        if run not in self._memory.runs and run in self._doubtful:
            self._adopt({names.SWEEP_ID: self._ledger.sweep_id, names.KEY: run})
        run_id = self._memory.runs.get(run)
        created = run_id is None
        if run_id is None:
            run_id = self._memory.runs[run] = self._create(run)
        self._guarded(run, lambda: self._log(run_id, change))
        for name, path in change.artifacts.items():
            self._guarded(run, partial(self._upload, run_id, name, self._now_at(path)))
        if change.status is not None and (change.status != names.RUNNING or not created):
            status, time = change.status, change.time
            self._guarded(run, lambda: tracker.set_status(run_id, status, time))

    def _log(self, run_id: str, change: Change) -> None:
        """Log a change; if it is refused, log it without its parameters and raise the error."""
        try:
            self._tracker.log(run_id, change)
        except RefusedError:
            if change.params:  # If the journal was cut, a study may choose another trial.
                self._tracker.log(run_id, replace(change, params={}))
            raise

    def _upload(self, run_id: str, name: str, path: Path) -> None:
        """Upload a file of a chosen trial; refuse others, which an edited journal may name."""
        real, folder = path.resolve(), SweepFolder(self.journal.parent).chosen
        if real.is_file() and not is_inside(real, folder):
            raise RefusedError(f"artifact {name}: {real} is not delivered: it is outside {folder}")
        self._tracker.upload(run_id, name, real)

    def _now_at(self, path: str) -> Path:
        """Return the current path of a file of the sweep, whose folder may have been moved."""
        folder = self.journal.parent
        inside = path.rpartition(f"/{folder.parent.name}/{folder.name}/")[2]
        return folder / inside if (folder / inside).is_file() else Path(path)

    def _guarded(self, run: str, action: Callable[[], None]) -> None:
        try:
            action()
        except RefusedError as error:
            self.shipment.refused.append(f"{run}: {error}")
            logger.error("refused for good: %s: %s", run, error)

    def _adopt(self, tags: dict[str, str]) -> None:
        for found in self._tracker.runs(RunQuery([self._experiment], tags)):
            self._memory.runs.setdefault(found.tags[names.KEY], found.id)

    def _create(self, run: str) -> str:
        ledger, parent = self._ledger, None
        if (trial := ledger.trials.get(run)) is not None:
            name, tags, start = trial_name(trial, ledger), trial_tags(trial, ledger), trial.time
            parent = self._memory.runs.get(trial.study)
        else:
            study = ledger.studies[run]
            name, tags, start = study_name(study), study_tags(study, ledger), study.time
        try:
            return self._tracker.create_run(self._experiment, name, tags, start, parent)
        except UnreachableError:
            self._doubtful.add(run)
            raise
