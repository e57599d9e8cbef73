"""Turns each event of a sweep into changes of its runs.

The changes depend only on the events: a second pass over a journal gives the same points at the
same times, so the tracker recognises repeated deliveries.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.storage.events import (
    TEST_PREFIX,
    Epoch,
    Evaluated,
    Event,
    StudyClosed,
    StudyOpened,
    SweepEnded,
    TrialFinished,
    TrialScored,
    TrialStarted,
)
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.results import trials_of_choice
from orchestrator.tracking import _names as names


class Point(NamedTuple):
    """A value of a metric; ``time`` in milliseconds since 1970."""

    name: str
    value: float
    time: int
    step: int


@dataclass
class Change:
    """The additions of one or more events to one run.

    Attributes:
        run: A trial's key or a study's name; ``Tracker.log`` does not use it.
        artifacts: Paths of files, by name.
        status: The run's new status, if the event changes it.
        time: When the status changed, in milliseconds since 1970.
    """

    run: str
    points: list[Point] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    status: str | None = None
    time: int = 0

    def absorb(self, later: "Change") -> None:
        """Add a later change of the same run."""
        self.points += later.points
        self.params |= later.params
        self.tags |= later.tags
        self.artifacts |= later.artifacts
        if later.status is not None:
            self.status, self.time = later.status, later.time


class Changes:
    """Turns the events of one sweep into changes; ``ledger`` is the sweep's state after them."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._clocks: dict[str, int] = {}
        self._ticks: dict[str, int] = {}
        self._described: set[str] = set()

    def apply(self, event: Event) -> list[Change]:
        """Apply an event to the ledger; return the changes to deliver, in their order."""
        studies, trials = self.ledger.studies, self.ledger.trials
        match event:
            case StudyOpened(study=name) if name not in studies:
                self.ledger.apply(event)
                points = self._counts(studies[name], event.time)
                data = {names.DATASET: event.dataset, names.FINGERPRINT: event.fingerprint}
                return [Change(name, points, tags=data, status=names.RUNNING)]
            case StudyClosed(study=name) if name in studies:
                return self._closed(studies[name], event)
            case TrialFinished(key=key) if key in trials:
                return self._finished(trials[key], event)
            case Evaluated(key=key) if key in trials:
                return self._evaluated(trials[key], event)
        changes = self._changes(event)
        self.ledger.apply(event)
        return changes

    def close_open(self, time: int, status: str) -> list[Change]:
        """Return changes that mark open runs as KILLED at ``time`` (milliseconds), trials first."""
        reason = f"the sweep ended ({status}) before this study"
        runs = [trial.key for trial in self.ledger.trials.values() if trial.open]
        runs += [study.name for study in self.ledger.studies.values() if study.status == "running"]
        return [
            Change(run, tags={names.REASON: reason}, status=names.KILLED, time=time) for run in runs
        ]

    def _changes(self, event: Event) -> list[Change]:
        """Return the changes of an event that ``apply`` does not handle itself."""
        studies, trials, time = self.ledger.studies, self.ledger.trials, event.time
        match event:
            case StudyOpened(study=run) | TrialStarted(key=run) if run in trials or run in studies:
                return [Change(run, tags={names.REASON: ""}, status=names.RUNNING, time=time)]
            case TrialStarted():
                points = self._points(event.key, {names.TRIAL_NUMBER: event.number}, time, 0)
                params = names.flatten(event.configuration)
                return [Change(event.key, points, params, status=names.RUNNING)]
            case Epoch(key=key) if key in trials and event.step > trials[key].last_step:
                return [Change(key, self._points(key, event.metrics, time, event.step))]
            case TrialScored(key=key) if key in trials and trials[key].objective != event.objective:
                points = self._points(key, {names.OBJECTIVE: event.objective}, time, 0)
                return [Change(key, points)]
            case SweepEnded():
                return self.close_open(time, event.status)
        return []

    def _finished(self, trial: Trial, event: TrialFinished) -> list[Change]:
        news = _news(event.metrics, trial.metrics)
        if event.seconds is not None and event.seconds != trial.seconds:
            news[names.SECONDS] = event.seconds
        tags = {
            names.REUSED: names.yes(event.reused),
            names.ARTIFACT: event.artifact or "",
            names.REASON: (event.reason or "")[: names.MAX_TAG],
        }
        points = self._points(trial.key, news, event.time, max(trial.last_step, 0))
        status, study = names.STATUS_OF_TRIAL[event.status], self.ledger.studies.get(trial.study)
        changes = [Change(trial.key, points, tags=tags, status=status, time=event.time)]
        before = study and (study.finished, study.failed)
        self.ledger.apply(event)
        if study is not None and (study.finished, study.failed) != before:
            changes.append(Change(study.name, self._counts(study, event.time)))
        return changes

    def _evaluated(self, trial: Trial, event: Evaluated) -> list[Change]:
        figures = {name.removeprefix(TEST_PREFIX): v for name, v in event.metrics.items()}
        news = {TEST_PREFIX + name: value for name, value in _news(figures, trial.test).items()}
        if event.seconds is not None and event.seconds != trial.chain_seconds:
            news[names.CHAIN_SECONDS] = event.seconds
        points = self._points(trial.key, news, event.time, max(trial.last_step, 0))
        tags = {names.EVALUATED: names.yes(True), names.PREDICTIONS: event.predictions or ""}
        if event.computed:
            tags[names.COMPUTED] = json.dumps(event.computed)
        if event.default_predictions:
            tags[names.DEFAULT_PREDICTIONS] = event.default_predictions
        change = Change(trial.key, points, tags=tags, artifacts=dict(event.artifacts or {}))
        self.ledger.apply(event)
        study = self.ledger.studies.get(trial.study)
        return [change, *(self._summary(study, event.time) if study is not None else ())]

    def _closed(self, study: Study, event: StudyClosed) -> list[Change]:
        earlier, before = study.chosen, (study.finished, study.failed)
        self.ledger.apply(event)
        changes = [
            Change(key, tags=_choice_tags(study, key == study.chosen))
            for key in (earlier, study.chosen)
            if key in self.ledger.trials
        ]
        unchanged = (study.finished, study.failed) == before
        points = [] if unchanged else self._counts(study, event.time)
        status = names.FINISHED if study.chosen else names.FAILED
        tags = {names.CHOSEN: study.chosen or "", names.REASON: study.reason[: names.MAX_TAG]}
        changes.append(Change(study.name, points, tags=tags, status=status, time=event.time))
        return changes + (self._summary(study, event.time) if earlier != study.chosen else [])

    def _summary(self, study: Study, time: int) -> list[Change]:
        """Return the change of a study's run that describes the chosen trial, if there is one.

        It has the configuration, and the test metrics as mean and standard deviation over the
        seeds that have been measured so far.
        """
        chosen = study.chosen_trial
        if chosen is None:
            return []
        measured = (trial for trial in study.begun.values() if trial.test)
        tests = [trial.test for trial in trials_of_choice(study, chosen, measured)]
        figures = {names.TEST_SEEDS: float(len(tests))}
        if chosen.objective is not None:
            figures[names.CHOSEN_OBJECTIVE] = chosen.objective
        for name in (*names.FIGURES, *study.origin.get("metrics", {})):
            values = [test[name] for test in tests if name in test]
            if values:
                figures[TEST_PREFIX + name] = statistics.fmean(values)
            if len(values) > 1:
                figures[TEST_PREFIX + name + names.DEVIATION] = statistics.stdev(values)
        # A server refuses a second value of a parameter, so only tags show a later choice.
        params = {} if study.name in self._described else names.flatten(chosen.configuration)
        self._described.add(study.name)
        points = self._points(study.name, figures, time, self._tick(f"choice of {study.name}"))
        return [Change(study.name, points, params, names.configuration_tags(chosen.configuration))]

    def _tick(self, series: str) -> int:
        tick = self._ticks[series] = self._ticks.get(series, 0) + 1
        return tick

    def _counts(self, study: Study, time: int) -> list[Point]:
        """Return points with a study's numbers of finished and failed trials, at the next step."""
        counts = {names.TRIALS_FINISHED: study.finished, names.TRIALS_FAILED: study.failed}
        return self._points(study.name, counts, time, self._tick(study.name))

    def _points(self, run: str, metrics: Mapping[str, float], time: int, step: int) -> list[Point]:
        """Turn metrics into points that replace their earlier points of the same step.

        A tracker shows the latest point of the greatest step, so the times of a run must rise even
        if the machine's clock does not.
        """
        clock = self._clocks[run] = max(time, self._clocks.get(run, 0) + 1)
        return [Point(name, float(value), clock, step) for name, value in metrics.items()]


def _news(metrics: Mapping[str, float], known: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if known.get(name) != value}


def _choice_tags(study: Study, chosen: bool) -> dict[str, str]:
    return {names.CHOSEN: names.yes(chosen), names.BEST_OF: study.name if chosen else ""}
