"""Compute the state of a sweep from the events of its journal, also while it runs."""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from threading import RLock
from typing import Any

from orchestrator.storage.events import (
    TEST_PREFIX,
    Epoch,
    Evaluated,
    Event,
    StudyClosed,
    StudyOpened,
    SweepEnded,
    SweepStarted,
    TrialFinished,
    TrialPlaced,
    TrialScored,
    TrialStarted,
    fields_of,
)
from orchestrator.storage.journal import iterate_events, read_events
from orchestrator.storage.storage import SweepFolder
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.metrics import METRICS


@dataclass(slots=True, kw_only=True)
class Trial(TrialStarted):
    """A trial as it was first started, with its results.

    Attributes:
        code: Git commit of its first start.
        open: Whether it has been started since it, or the sweep, last ended.
        host, since: Machine of the last attempt, and start of this attempt in milliseconds since
            1970.
        status: ``finished``, ``failed`` or ``pruned``, as the trial last ended; ``running`` if it
            never has.
        artifact, reason, fault, reused, seconds, epoch_seconds, peak_memory: From its last
            ``TrialFinished``.
        last_step, epochs: Last epoch and number of epochs; -1 and 0 if none was read.
        curves: Steps and values of the metrics that the ledger keeps for each epoch.
        objective: Score that the search minimises; None until it is scored.
        chain_seconds: Cost of computing its chain of stages, if known.
    """

    code: str = ""
    open: bool = True
    host: str = ""
    since: int = 0
    status: str = "running"
    metrics: dict[str, float] = field(default_factory=dict)
    artifact: str = ""
    reason: str = ""
    fault: str = ""
    reused: bool = False
    seconds: float | None = None
    epoch_seconds: float | None = None
    peak_memory: float | None = None
    last_step: int = -1
    epochs: int = 0
    curves: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)
    objective: float | None = None
    accuracy_error: float | None = None
    test: Mapping[str, float] = field(default_factory=dict)
    predictions: str = ""
    default_predictions: str = ""
    chain_seconds: float | None = None
    computed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    run_id: str = ""

    @property
    def ref(self) -> ArtifactRef:
        """Return the reference to its artifact, without a key if there is none."""
        return ArtifactRef(self.stage, self.artifact)

    @property
    def ended(self) -> bool:
        """Return True if it has ended at least once."""
        return self.status != "running"

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the steps at which a metric was reported, and its values."""
        steps, values = self.curves.get(metric, ((), ()))
        return list(steps), list(values)


def stopped_after(status: str, rule: Mapping[str, Any], trials: int, ended: int) -> int:
    """Return the number of trials after which ``search.stop`` ended a search; 0 if it did not."""
    return ended if status == "finished" and rule.get("stop") and ended < trials else 0


@dataclass(slots=True, kw_only=True)
class Study(StudyOpened):
    """A study as it was opened, with its results.

    Attributes:
        finished, failed: Number of search trials that finished or failed.
        reason: Why the study or one of its trials failed, or the study was interrupted; else empty.
        begun: Its trials by key, in the order of their first start.
    """

    index: int
    code: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    sweep_id: str = ""
    status: str = "running"
    closed: StudyClosed | None = None
    chosen: str | None = None
    finished: int = 0
    failed: int = 0
    reason: str = ""
    run_id: str = ""
    begun: dict[str, Trial] = field(default_factory=dict)

    @property
    def planned(self) -> int:
        """Return the number of search trials, fewer than ``trials`` if ``search.stop`` ended it."""
        ended = self.finished + self.failed
        return stopped_after(self.status, self.rule, self.trials, ended) or self.trials

    def __post_init__(self) -> None:
        # Tables show metrics of plugins without loading the plugins.
        METRICS.declare(self.origin.get("metrics", {}))

    @property
    def name(self) -> str:
        """Return the study's name, ``TASK|RECIPE``."""
        return self.study

    def shows(self, seed: int) -> bool:
        """Return True if tables show runs with this seed."""
        return seed in self.origin.get("seeds", (seed,))

    @property
    def searched(self) -> list[Trial]:
        """Return the trials of the search, by number."""
        trials = (trial for trial in self.begun.values() if trial.role == "search")
        return sorted(trials, key=attrgetter("number"))

    @property
    def scored(self) -> list[Trial]:
        """Return the trials of the search that have an objective, by number."""
        return [trial for trial in self.searched if trial.objective is not None]

    @property
    def chosen_trial(self) -> Trial | None:
        """Return the chosen trial; None if there is none."""
        return self.begun.get(self.chosen or "")


class Ledger:
    """The state of one sweep after the events so far.

    Later events replace earlier ones, but of a repeated opening, start or epoch the first counts.
    Events of trials that were never started are ignored. The values of the metrics in ``curves``
    are kept for each epoch.

    Attributes:
        provenance: ``git_commit``, ``versions`` and ``hardware`` of the last run.
        began: Start of the last run, milliseconds since 1970.
        given: Start of the first trial in the last run, milliseconds since 1970; 0 before.
        spent: Total seconds of the trials that ended in the last run, without reused results.
    """

    def __init__(self, events: Iterable[Event] = (), curves: Collection[str] = ()) -> None:
        self._curves = curves
        self.sweep = ""
        self.sweep_id = ""
        self.spec: Mapping[str, Any] = {}
        self.provenance: Mapping[str, Any] = {}
        self.status = "running"
        self.began, self.given, self.spent = 0, 0, 0.0
        self.ended: int | None = None
        self.studies: dict[str, Study] = {}
        self.trials: dict[str, Trial] = {}
        for event in events:
            self.apply(event)

    @property
    def git_commit(self) -> str:
        """Return the commit of the last run, with ``-dirty`` for local changes."""
        return str(self.provenance.get("git_commit") or "")

    @property
    def objective(self) -> str:
        """Return the validation metric that the search minimises, such as ``ece``."""
        return str(self.spec.get("search", {}).get("objective", "ece"))

    @property
    def pareto(self) -> tuple[str, ...]:
        """Return the validation metrics of the Pareto front in addition to the objective."""
        return tuple(self.spec.get("search", {}).get("pareto", ()))

    @property
    def further_seeds(self) -> int:
        """Return the number of seeds other than the search's."""
        seeds = list(self.spec.get("seeds") or [0])
        first = self.spec.get("search", {}).get("seed")
        return len({*seeds, seeds[0] if first is None else first}) - 1

    @property
    def parallel_trials(self) -> int:
        """Return the maximum number of trials of one study at once."""
        return int(self.spec.get("search", {}).get("parallel_trials", 1))

    @property
    def guarded(self) -> bool:
        """Return True if the objective includes a penalty for lost accuracy."""
        return self.spec.get("search", {}).get("accuracy_tolerance") is not None

    def apply(self, event: Event) -> None:
        """Update the state by one event."""
        getattr(self, f"_{event.event}")(event)

    def _sweep_started(self, event: SweepStarted) -> None:
        if self.sweep_id and event.sweep_id != self.sweep_id:
            raise InputError(
                f"the journal of sweep {self.sweep_id} contains another sweep, {event.sweep_id}"
            )
        self.sweep, self.sweep_id = event.sweep, event.sweep_id
        self.spec, self.provenance = event.spec or {}, event.provenance or {}
        self.status, self.ended = "running", None
        self.began, self.given, self.spent = event.time, 0, 0.0

    def _study_opened(self, event: StudyOpened) -> None:
        known = self.studies.get(event.study)
        if known is not None:
            known.status, known.reason = "running", ""
            return
        self.studies[event.study] = Study(
            index=len(self.studies),
            code=self.git_commit,
            versions=self.provenance.get("versions") or {},
            sweep_id=self.sweep_id,
            **fields_of(event, StudyOpened),
        )

    def _trial_started(self, event: TrialStarted) -> None:
        self.given = self.given or event.time
        if event.key in self.trials:
            self.trials[event.key].open = True
            return
        trial = Trial(code=self.git_commit, **fields_of(event, TrialStarted))
        self.trials[event.key] = trial
        if event.study in self.studies:
            self.studies[event.study].begun[event.key] = trial

    def _trial_placed(self, event: TrialPlaced) -> None:
        if event.key in self.trials:
            trial = self.trials[event.key]
            trial.host, trial.since = event.host, event.time

    def _epoch(self, event: Epoch) -> None:
        trial = self.trials.get(event.key)
        if trial is None or event.step <= trial.last_step:
            return
        trial.last_step = event.step
        trial.epochs += 1
        trial.metrics.update(event.metrics)
        for name in self._curves:
            if name in event.metrics:
                steps, values = trial.curves.setdefault(name, (array("q"), array("d")))
                steps.append(event.step)
                values.append(event.metrics[name])

    def _trial_finished(self, event: TrialFinished) -> None:
        trial = self.trials.get(event.key)
        if trial is None:
            return
        study = self.studies.get(trial.study)
        if study is not None and trial.role == "search":
            study.finished += (event.status == "finished") - (trial.status == "finished")
            study.failed += (event.status == "failed") - (trial.status == "failed")
        self.spent += (event.seconds or 0.0) * (not event.reused)
        trial.open, trial.status = False, event.status
        epochs = trial.metrics if trial.last_step >= 0 else {}
        trial.metrics = {**epochs, **event.metrics}
        trial.artifact, trial.reason, trial.fault = event.artifact, event.reason, event.fault
        trial.reused, trial.seconds = event.reused, event.seconds
        trial.epoch_seconds, trial.peak_memory = event.epoch_seconds, event.peak_memory

    def _trial_scored(self, event: TrialScored) -> None:
        if event.key in self.trials:
            trial = self.trials[event.key]
            trial.objective, trial.accuracy_error = event.objective, event.error

    def _evaluated(self, event: Evaluated) -> None:
        trial = self.trials.get(event.key)
        if trial is None:
            return
        measured = {name.removeprefix(TEST_PREFIX): v for name, v in event.metrics.items()}
        trial.test = {**trial.test, **measured}
        trial.predictions, trial.computed = event.predictions, event.computed
        trial.default_predictions = event.default_predictions or trial.default_predictions
        if event.seconds is not None:
            trial.chain_seconds = event.seconds

    def _study_closed(self, event: StudyClosed) -> None:
        study = self.studies.get(event.study)
        if study is None:
            return
        study.closed, study.chosen, study.reason = event, event.chosen, event.reason
        study.status = "finished" if event.chosen else "failed"
        study.finished, study.failed = event.finished, event.failed

    def _sweep_ended(self, event: SweepEnded) -> None:
        self.status, self.ended = event.status, event.time
        for study in self.studies.values():
            if study.status == "running":
                study.status = "interrupted"
                study.reason = f"the sweep ended ({event.status}) before this study"
        for trial in self.trials.values():
            trial.open = False


def read_ledger(path: Path) -> Ledger:
    """Read a journal without its epochs; a missing one gives an empty ledger."""
    return Ledger(iterate_events(path) if path.exists() else ())


PIECE = 4_000_000  # Bytes that are read at once.


class FollowedSweep:
    """A sweep whose journal is read as it grows; threads may share it.

    Attributes:
        problem: Why the journal cannot be read any further; else empty.
    """

    def __init__(self, folder: SweepFolder, curves: Collection[str] = ()) -> None:
        self.folder, self.problem, self._curves = folder, "", curves
        self._lock = RLock()
        self._forget()

    def _forget(self) -> None:
        self._ledger = Ledger(curves=self._curves)
        self._file, self._offset = -1, 0

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Yield the up-to-date ledger, which does not change within the block."""
        with self._lock:
            self.read_on()
            yield self._ledger

    def read_on(self) -> None:
        """Read the lines since the last call, or all if the file was replaced or cut."""
        with self._lock:
            try:
                stat = os.stat(self.folder.journal)
            except OSError:
                self._forget()
                return
            if stat.st_ino != self._file or stat.st_size < self._offset:
                self._forget()
                self._file = stat.st_ino
            if stat.st_size == self._offset:
                return
            try:
                self._read_pieces()
                self.problem = ""
            except InputError as error:
                self.problem = str(error)

    def _read_pieces(self) -> None:
        end = -1
        while end != self._offset:
            self._offset = max(end, self._offset)
            events, end = read_events(self.folder.journal, self._offset, PIECE)
            for event in events:
                self._ledger.apply(event)
