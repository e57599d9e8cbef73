"""Which configuration is chosen: objective, accuracy guard, order, tie, and when the default stays.

The one place for the rule. Only search trials that finished stand for choice, and validation
metrics alone decide: the lowest objective wins, of equal ones the trial that came first in its
study, then the study that was opened first. A rule may ask more of a trial that is to replace the
published default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from orchestrator.sweep.spec import SearchModel, TaskSpec

SEARCH, SEED = "search", "seed"
"""Roles of trials: one that searches, and a further seed of a configuration that was chosen."""

FINISHED = "finished"

DEFAULT = 0
"""Number of the trial of a study that runs the published default."""


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


class Margin(NamedTuple):
    """How far the best trial is below the published default, and its paired standard error."""

    difference: float
    error: float

    def clear(self, errors: float) -> bool:
        """Return True if it is more than so many standard errors."""
        return self.difference > errors * self.error


@dataclass(frozen=True)
class ChoiceRule:
    """How the configuration of one study is chosen.

    Attributes:
        objective: The validation metric to minimise, such as ``val_ece``.
        accuracy_tolerance: How far, as a fraction, validation accuracy may fall below that of plain
            cross-entropy before the shortfall is added to the objective; None for no guard.
        epoch: Whose epoch's metrics count, as the protocol says.
        tie: Who wins between equal objectives.
        accuracy_errors: How many paired standard errors accuracy may fall beside the tolerance.
        keep_default: By how many standard errors the published default has to be beaten, or it is
            chosen; 0 for the lowest objective alone, as where no paper gives the default.
        stop: ``auto`` if the search may end before its last trial, else empty.
    """

    objective: str
    accuracy_tolerance: float | None
    epoch: str
    tie: str = "earlier trial"
    accuracy_errors: float = 0.0
    keep_default: float = 0.0
    stop: str = ""

    @classmethod
    def of(cls, search: SearchModel, task: TaskSpec, published: bool = True) -> ChoiceRule:
        """Return the rule of a task's studies; without a ``published`` default, the objective's."""
        keep = task.resolved_protocol.keep
        return cls(
            f"val_{search.objective}",
            search.accuracy_tolerance,
            keep,
            accuracy_errors=search.accuracy_errors,
            keep_default=search.keep_default if published else 0.0,
            stop=search.stop or "",
        )

    @property
    def metric(self) -> str:
        """Return the objective as reports name it."""
        return self.objective.removeprefix("val_")

    @property
    def pairs_accuracy(self) -> bool:
        """Return True if the guard asks for the standard error of lost accuracy."""
        return self.accuracy_tolerance is not None and self.accuracy_errors > 0

    def plain(self) -> dict[str, Any]:
        """Return the rule as it is written down: without later fields that are not used."""
        later = ("accuracy_errors", "keep_default", "stop")
        return {k: value for k, value in asdict(self).items() if value or k not in later}

    def score(
        self,
        metrics: Mapping[str, float],
        reference: Mapping[str, float] | None = None,
        error: float = 0.0,
    ) -> float:
        """Return the guarded objective of validation metrics, fractions, which is minimised.

        ``reference`` are those of the configuration of plain cross-entropy that was chosen; None
        where there is none, so that nothing guards. ``error`` is the paired standard error of the
        difference in accuracy from it.
        """
        value = metrics[self.objective]
        if reference is None or self.accuracy_tolerance is None:
            return value
        floor = reference["val_acc"] - self.accuracy_tolerance - self.accuracy_errors * error
        return value + max(0.0, floor - metrics["val_acc"])

    def choose(
        self, ranked: Sequence[Rank], margin: Callable[[Rank, Rank], Margin]
    ) -> tuple[Rank, Margin | None]:
        """Return the chosen one of the trials of a study, and its margin if one was asked for."""
        best = min(ranked)
        default = next((rank for rank in ranked if rank.number == DEFAULT), None)
        if not self.keep_default or default is None or best is default:
            return best, None
        found = margin(best, default)
        return best if found.clear(self.keep_default) else default, found


def stands_for_choice(role: str, status: str) -> bool:
    """Return True if a trial of that role that ended so may be chosen."""
    return role == SEARCH and status == FINISHED
