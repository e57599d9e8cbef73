"""What a journal tells of each trial, epoch by epoch: the data behind plots and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["History", "StudyHistory", "TrialHistory", "read_history"]

Value = bool | int | float | str


@dataclass
class TrialHistory:
    """One trial.

    Attributes:
        number: Counts a study's trials from 0.
        role: ``search`` or ``seed``.
        seed: Its seed.
        parameters: What its study searched, as ``part.name``.
        configuration: The whole chain, part to its parameters, in the order of the recipe.
        epochs: Step to that epoch's figures.
        objective: What the search minimises, or None for a failed trial.
        key: Names the trial for ever.
        stage: What it computed: ``train``, ``refine`` or ``calibrate``.
        status: ``running``, ``finished``, ``failed`` or ``pruned``.
        reason: Why it failed; else empty.
        seconds: What it took, if it has ended.
        reused: Whether its outcome came from the store.
        evaluated: Whether it was measured on test data.
    """

    number: int
    role: str
    seed: int
    parameters: Mapping[str, Value]
    configuration: Mapping[str, Mapping[str, Value]]
    epochs: dict[int, Mapping[str, float]] = field(default_factory=dict)
    objective: float | None = None
    key: str = ""
    stage: str = ""
    status: str = "running"
    reason: str = ""
    seconds: float | None = None
    reused: bool = False
    evaluated: bool = False

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the steps at which a figure was reported, and its values."""
        steps = sorted(step for step, figures in self.epochs.items() if metric in figures)
        return steps, [self.epochs[step][metric] for step in steps]


@dataclass
class StudyHistory:
    """One study.

    Attributes:
        name: ``<task>|<recipe>``.
        trials: Trials by key, in the order in which they started.
        chosen: Key of the chosen trial, or None.
        task: Its task.
        recipe: Its recipe.
    """

    name: str
    trials: dict[str, TrialHistory] = field(default_factory=dict)
    chosen: str | None = None
    task: str = ""
    recipe: str = ""

    @property
    def searched(self) -> list[TrialHistory]:
        """Return the trials of the search, by number."""
        trials = (trial for trial in self.trials.values() if trial.role == "search")
        return sorted(trials, key=lambda trial: trial.number)

    @property
    def chosen_trial(self) -> TrialHistory | None:
        """Return the chosen trial."""
        return self.trials.get(self.chosen or "")


@dataclass
class History:
    """One sweep.

    Attributes:
        objective: The validation metric that the search minimises, such as ``ece``.
        guarded: Whether lost accuracy is charged against it.
        studies: The studies by name, in order.
        spec: The sweep file as it ran.
        provenance: ``git_commit``, ``versions`` and ``hardware`` of the last run.
        status: ``running``, ``finished``, ``failed`` or ``interrupted``.
    """

    objective: str = "ece"
    guarded: bool = False
    studies: dict[str, StudyHistory] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    status: str = "running"


def read_history(events: Iterable[Mapping[str, Any]]) -> History:
    """Gather the events of one journal; a later one counts, but an epoch's first report stays."""
    history = History()
    trials: dict[str, TrialHistory] = {}
    for event in events:
        kind, key = event["event"], event.get("key", "")
        if kind == "sweep_started":
            _start(history, event)
        elif kind == "study_opened":
            study = StudyHistory(event["study"], task=event["task"], recipe=event["recipe"])
            history.studies.setdefault(study.name, study)
        elif kind == "trial_started" and key not in trials:
            trials[key] = history.studies[event["study"]].trials[key] = _trial(event)
        elif kind == "study_closed":
            history.studies[event["study"]].chosen = event["chosen"]
        elif kind == "sweep_ended":
            history.status = event["status"]
        elif key in trials:
            _add(trials[key], event)
    return history


def _start(history: History, event: Mapping[str, Any]) -> None:
    history.spec, history.provenance = event["spec"], event.get("provenance") or {}
    history.status = "running"
    search = event["spec"].get("search", {})
    history.objective = search.get("objective", history.objective)
    history.guarded = search.get("accuracy_tolerance") is not None


def _trial(event: Mapping[str, Any]) -> TrialHistory:
    return TrialHistory(
        event["number"],
        event["role"],
        event["seed"],
        event.get("parameters", {}),
        event["configuration"],
        key=event["key"],
        stage=event["stage"],
    )


def _add(trial: TrialHistory, event: Mapping[str, Any]) -> None:
    """Take in what happened to a trial that has started."""
    match event["event"]:
        case "epoch":
            trial.epochs.setdefault(event["step"], event["metrics"])
        case "trial_scored":
            trial.objective = event["objective"]
        case "trial_finished":
            trial.status, trial.reason = event["status"], event.get("reason") or ""
            trial.seconds, trial.reused = event.get("seconds"), event.get("reused", False)
        case "evaluated":
            trial.evaluated = True
