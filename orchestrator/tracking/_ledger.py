"""Folds the events of a journal into what is known of a sweep, and into what changed.

The fold depends on nothing but the events: folding a journal twice gives the same points with the
same times, so whatever is delivered again is recognised as already there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.journal import EVENTS, TEST_PREFIX
from orchestrator.tracking import _names as names
from trainables.errors import InputError

_DESCRIPTION = ("fingerprint", "dataset", "model", "protocol", "setting")


class Point(NamedTuple):
    """One value of one metric of one run; ``time`` in milliseconds since 1970."""

    name: str
    value: float
    time: int
    step: int


@dataclass
class Change:
    """What one event adds to one run: nothing in it needs the changes before it."""

    run: str
    points: list[Point] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    status: str | None = None
    time: int = 0

    def absorb(self, later: Change) -> None:
        """Add a later change of the same run."""
        self.points += later.points
        self.params |= later.params
        self.tags |= later.tags
        self.artifacts |= later.artifacts
        if later.status is not None:
            self.status, self.time = later.status, later.time


@dataclass
class Trial:
    """What is known of one trial."""

    key: str
    study: str
    number: int
    role: str
    seed: int
    stage: str
    configuration: dict[str, Any]
    started: int
    status: str = names.RUNNING
    metrics: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    objective: float | None = None
    reason: str = ""
    last_step: int = -1
    clock: int = 0
    run_id: str = ""
    code: str = ""
    artifact: str = ""
    predictions: str = ""
    chain_seconds: float | None = None

    def points(self, metrics: Mapping[str, float], time: int, step: int) -> list[Point]:
        """Turn metrics into points that supersede all earlier ones of the same step.

        A tracking server takes the latest time of the greatest step for the current value, so the
        times of one trial must rise even where the machine's clock does not.
        """
        self.clock = max(time, self.clock + 1)
        return [Point(name, float(value), self.clock, step) for name, value in metrics.items()]


@dataclass
class Study:
    """What is known of one study."""

    name: str
    task: str
    recipe: str
    index: int
    trials: int
    row: bool
    opened: int
    upstream: str | None = None
    fingerprint: str = ""
    status: str = names.RUNNING
    chosen: str | None = None
    finished: int = 0
    failed: int = 0
    reason: str = ""
    ticks: int = 0
    clock: int = 0
    run_id: str = ""
    dataset: str = ""
    model: str = ""
    protocol: str = ""
    setting: str = ""
    rule: dict[str, str] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    sweep_id: str = ""

    def count(self, finished: int, failed: int, time: int) -> list[Point]:
        """Set the counts of search trials; return points where they changed."""
        if self.ticks and (finished, failed) == (self.finished, self.failed):
            return []
        self.finished, self.failed = finished, failed
        self.ticks += 1
        self.clock = max(time, self.clock + 1)
        counts = {names.TRIALS_FINISHED: finished, names.TRIALS_FAILED: failed}
        return [Point(name, float(n), self.clock, self.ticks) for name, n in counts.items()]


class Ledger:
    """All that the events so far say of one sweep."""

    def __init__(self) -> None:
        self.sweep = ""
        self.sweep_id = ""
        self.git_commit = ""
        self.versions: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.studies: dict[str, Study] = {}
        self.trials: dict[str, Trial] = {}
        self.ended: int | None = None
        self._counted: dict[str, str] = {}

    def apply(self, event: Mapping[str, Any]) -> list[Change]:
        """Take in one event.

        Returns:
            What it changes, in the order in which it has to be delivered. Events of trials that
            were never started and events of unknown kinds change nothing.

        Raises:
            InputError: If a second sweep turns up in the same journal.
        """
        if event["event"] not in EVENTS:
            return []
        changes: list[Change] = getattr(self, f"_{event['event']}")(event)
        return changes

    def close_open(self, time: int, status: str) -> list[Change]:
        """Return the changes that end every open run of a sweep that is over, trials first."""
        reason = f"the sweep ended ({status}) before this did"
        open_runs = [t.key for t in self.trials.values() if t.status == names.RUNNING]
        open_runs += [s.name for s in self.studies.values() if s.status == names.RUNNING]
        return [
            Change(run, tags={names.REASON: reason}, status=names.KILLED, time=time)
            for run in open_runs
        ]

    def _sweep_started(self, event: Mapping[str, Any]) -> list[Change]:
        if self.sweep_id and event["sweep_id"] != self.sweep_id:
            raise InputError(
                f"the journal of sweep {self.sweep_id} holds another sweep, {event['sweep_id']}"
            )
        provenance = event["provenance"] or {}
        self.sweep, self.sweep_id = event["sweep"], event["sweep_id"]
        self.git_commit = str(provenance.get("git_commit") or "")
        self.versions = {k: str(v) for k, v in (provenance.get("versions") or {}).items()}
        self.tags = dict((event["spec"] or {}).get("tags") or {})
        self.ended = None
        return []

    def _study_opened(self, event: Mapping[str, Any]) -> list[Change]:
        name, time = event["study"], event["time"]
        known = self.studies.get(name)
        if known is not None:
            known.status, known.reason = names.RUNNING, ""
            return [_reopened(name, time)]
        facts: dict[str, Any] = {fact: str(event.get(fact) or "") for fact in _DESCRIPTION}
        study = self.studies[name] = Study(
            name,
            event["task"],
            event["recipe"],
            index=len(self.studies),
            trials=int(event["trials"]),
            row=bool(event["row"]),
            opened=time,
            upstream=event.get("upstream"),
            code=self.git_commit,
            sweep_id=self.sweep_id,
            origin=dict(event.get("origin") or {}),
            rule={name: names.text(value) for name, value in (event.get("rule") or {}).items()},
            **facts,
        )
        return [Change(name, study.count(0, 0, time), status=names.RUNNING)]

    def _trial_started(self, event: Mapping[str, Any]) -> list[Change]:
        key, time = event["key"], event["time"]
        known = self.trials.get(key)
        if known is not None:
            known.status, known.reason = names.RUNNING, ""
            return [_reopened(key, time)]
        trial = self.trials[key] = Trial(
            key,
            event["study"],
            int(event["number"]),
            event["role"],
            int(event["seed"]),
            event["stage"],
            event["configuration"],
            started=time,
            code=self.git_commit,
        )
        points = trial.points({names.TRIAL_NUMBER: trial.number}, time, 0)
        return [Change(key, points, names.flatten(trial.configuration), status=names.RUNNING)]

    def _epoch(self, event: Mapping[str, Any]) -> list[Change]:
        trial = self.trials.get(event["key"])
        if trial is None or event["step"] <= trial.last_step:
            return []
        trial.last_step = int(event["step"])
        trial.metrics |= event["metrics"]
        return [Change(trial.key, trial.points(event["metrics"], event["time"], trial.last_step))]

    def _trial_finished(self, event: Mapping[str, Any]) -> list[Change]:
        trial = self.trials.get(event["key"])
        if trial is None:
            return []
        values = {**event["metrics"], names.SECONDS: event.get("seconds")}
        news = {
            name: value
            for name, value in values.items()
            if value is not None and trial.metrics.get(name) != value
        }
        trial.metrics |= news
        artifact = str(event.get("artifact") or "")
        tags = {names.REUSED: names.yes(event.get("reused", False)), names.ARTIFACT: artifact}
        reason = str(event.get("reason") or "")
        if reason or trial.reason:
            tags[names.REASON] = reason[: names.MAX_TAG]
        trial.reason, trial.status = reason, names.STATUS_OF_TRIAL[event["status"]]
        points = trial.points(news, event["time"], max(trial.last_step, 0))
        change = Change(trial.key, points, tags=tags, status=trial.status, time=event["time"])
        return [change, *self._recount(trial, event["time"])]

    def _recount(self, trial: Trial, time: int) -> list[Change]:
        study = self.studies.get(trial.study)
        if study is None or trial.role != names.SEARCH:
            return []
        before = self._counted.get(trial.key)
        self._counted[trial.key] = trial.status
        change = {
            status: (trial.status == status) - (before == status)
            for status in (names.FINISHED, names.FAILED)
        }
        points = study.count(
            study.finished + change[names.FINISHED], study.failed + change[names.FAILED], time
        )
        return [Change(study.name, points)] if points else []

    def _trial_scored(self, event: Mapping[str, Any]) -> list[Change]:
        trial = self.trials.get(event["key"])
        if trial is None or trial.objective == event["objective"]:
            return []
        trial.objective = event["objective"]
        points = trial.points({names.OBJECTIVE: event["objective"]}, event["time"], 0)
        return [Change(trial.key, points)]

    def _study_closed(self, event: Mapping[str, Any]) -> list[Change]:
        study = self.studies.get(event["study"])
        if study is None:
            return []
        before, study.chosen = study.chosen, event["chosen"]
        study.reason = str(event.get("reason") or "")
        study.status = names.FINISHED if study.chosen else names.FAILED
        changes = [
            Change(key, tags=_choice_tags(study, key == study.chosen))
            for key in (before, study.chosen)
            if key in self.trials
        ]
        points = study.count(int(event["finished"]), int(event["failed"]), event["time"])
        tags = {names.CHOSEN: study.chosen or "", names.REASON: study.reason[: names.MAX_TAG]}
        end = Change(study.name, points, tags=tags, status=study.status, time=event["time"])
        return [*changes, end]

    def _evaluated(self, event: Mapping[str, Any]) -> list[Change]:
        trial = self.trials.get(event["key"])
        if trial is None:
            return []
        values = {names.test_name(name): value for name, value in event["metrics"].items()}
        news = {
            name: value
            for name, value in values.items()
            if trial.test.get(name.removeprefix(TEST_PREFIX)) != value
        }
        trial.test |= {name.removeprefix(TEST_PREFIX): value for name, value in news.items()}
        seconds = event.get("seconds")
        if seconds is not None and seconds != trial.chain_seconds:
            trial.chain_seconds = news[names.CHAIN_SECONDS] = seconds
        points = trial.points(news, event["time"], max(trial.last_step, 0))
        trial.predictions = str(event.get("predictions") or "")
        tags = {names.EVALUATED: "true", names.PREDICTIONS: trial.predictions}
        artifacts = dict(event.get("artifacts") or {})
        return [Change(trial.key, points, tags=tags, artifacts=artifacts)]

    def _sweep_ended(self, event: Mapping[str, Any]) -> list[Change]:
        self.ended = event["time"]
        changes = self.close_open(event["time"], event["status"])
        for change in changes:
            record = self.trials.get(change.run) or self.studies[change.run]
            record.status, record.reason = names.KILLED, change.tags[names.REASON]
        return changes


def _choice_tags(study: Study, chosen: bool) -> dict[str, str]:
    return {names.CHOSEN: names.yes(chosen), names.BEST_OF: study.name if chosen else ""}


def _reopened(run: str, time: int) -> Change:
    return Change(run, tags={names.REASON: ""}, status=names.RUNNING, time=time)
