"""What a journal tells of each trial, epoch by epoch: the data behind the plots."""

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
    """

    number: int
    role: str
    seed: int
    parameters: Mapping[str, Value]
    configuration: Mapping[str, Mapping[str, Value]]
    epochs: dict[int, Mapping[str, float]] = field(default_factory=dict)
    objective: float | None = None

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
    """

    name: str
    trials: dict[str, TrialHistory] = field(default_factory=dict)
    chosen: str | None = None

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
    """

    objective: str = "ece"
    guarded: bool = False
    studies: dict[str, StudyHistory] = field(default_factory=dict)


def read_history(events: Iterable[Mapping[str, Any]]) -> History:
    """Gather the events of one journal; a later one counts, but an epoch's first report stays."""
    history = History()
    trials: dict[str, TrialHistory] = {}
    for event in events:
        kind, key = event["event"], event.get("key", "")
        if kind == "sweep_started":
            search = event["spec"].get("search", {})
            history.objective = search.get("objective", history.objective)
            history.guarded = search.get("accuracy_tolerance") is not None
        elif kind == "study_opened":
            history.studies.setdefault(event["study"], StudyHistory(event["study"]))
        elif kind == "trial_started" and key not in trials:
            trials[key] = history.studies[event["study"]].trials[key] = _trial(event)
        elif kind == "epoch":
            trials[key].epochs.setdefault(event["step"], event["metrics"])
        elif kind == "trial_scored":
            trials[key].objective = event["objective"]
        elif kind == "study_closed":
            history.studies[event["study"]].chosen = event["chosen"]
    return history


def _trial(event: Mapping[str, Any]) -> TrialHistory:
    return TrialHistory(
        event["number"],
        event["role"],
        event["seed"],
        event.get("parameters", {}),
        event["configuration"],
    )
