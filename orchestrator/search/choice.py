"""Which configuration is chosen: objective, accuracy guard, order and tie.

The one place for the rule. Only search trials that finished stand for choice, and validation
metrics alone decide: the lowest objective wins, of equal ones the trial that came first in its
study, then the study that was opened first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from orchestrator.sweep.spec import SearchModel, TaskSpec

SEARCH, SEED = "search", "seed"
"""Roles of trials: one that searches, and a further seed of a configuration that was chosen."""

FINISHED = "finished"


class Rank(NamedTuple):
    """What configurations are sorted by, the best first.

    Attributes:
        objective: Guarded validation objective, a fraction (nats for NLL).
        number: The trial's number in its study.
        opened: When the study was opened; counts only between trials of several studies.
    """

    objective: float
    number: int
    opened: float = 0.0


@dataclass(frozen=True)
class ChoiceRule:
    """How the configuration of one study is chosen.

    Attributes:
        objective: The validation metric to minimise, such as ``val_ece``.
        accuracy_tolerance: How far, as a fraction, validation accuracy may fall below that of plain
            cross-entropy before the shortfall is added to the objective; None for no guard.
        epoch: Whose epoch's metrics count, as the protocol says.
        tie: Who wins between equal objectives.
    """

    objective: str
    accuracy_tolerance: float | None
    epoch: str
    tie: str = "earlier trial"

    @classmethod
    def of(cls, search: SearchModel, task: TaskSpec) -> ChoiceRule:
        """Return the rule of a sweep's studies on a task."""
        keep = task.resolved_protocol.keep
        return cls(f"val_{search.objective}", search.accuracy_tolerance, keep)

    def score(
        self, metrics: Mapping[str, float], reference: Mapping[str, float] | None = None
    ) -> float:
        """Return the guarded objective of validation metrics, fractions, which is minimised.

        ``reference`` are those of the configuration of plain cross-entropy that was chosen; None
        where there is none, so that nothing guards.
        """
        value = metrics[self.objective]
        if reference is None or self.accuracy_tolerance is None:
            return value
        floor = reference["val_acc"] - self.accuracy_tolerance
        return value + max(0.0, floor - metrics["val_acc"])


def stands_for_choice(role: str, status: str) -> bool:
    """Tell whether a trial of that role that ended so may be chosen."""
    return role == SEARCH and status == FINISHED
