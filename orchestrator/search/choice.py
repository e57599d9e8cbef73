"""The rule by which a configuration is chosen: objective, accuracy guard, ties, kept default.

Only finished search trials can be chosen, and only validation metrics count. The lowest objective
wins; ties go to the trial with the lower number, then to the study that was opened first. A rule
may require a margin before a trial replaces the published default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from orchestrator.sweep.spec import SearchModel, TaskSpec

SEARCH, SEED = "search", "seed"
"""Roles of trials: a trial of the search, and a further seed of the chosen configuration."""

FINISHED = "finished"

DEFAULT = 0
"""Number of the trial of a study that runs the published default."""


class Rank(NamedTuple):
    """The sort key of configurations, the best first.

    Attributes:
        objective: Guarded validation objective, a fraction (nats for NLL).
        number: The trial's number in its study.
        opened: Order or time in which the study was opened, to compare trials of several studies.
    """

    objective: float
    number: int
    opened: float = 0.0


class Margin(NamedTuple):
    """The published default's objective minus the best trial's.

    ``error`` is the standard error of this difference, paired by validation row.
    """

    difference: float
    error: float

    def clear(self, errors: float) -> bool:
        """Return True if the difference exceeds ``errors`` standard errors."""
        return self.difference > errors * self.error


@dataclass(frozen=True)
class ChoiceRule:
    """How the configuration of one study is chosen.

    Attributes:
        objective: The validation metric to minimise, such as ``val_ece``.
        accuracy_tolerance: How far, as a fraction, validation accuracy may fall below that of plain
            cross-entropy or of the given logits. A further fall is added to the objective; None
            for no guard.
        epoch: The epoch whose metrics count, as in the protocol.
        tie: The winner between equal objectives.
        accuracy_errors: Additional tolerance, in paired standard errors of the lost accuracy.
        keep_default: By how many standard errors a trial must beat the published default to be
            chosen; 0 if the lowest objective wins. It is 0 if a searched value of the default is
            in no paper (except in sweeps of older versions).
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
        """Return the rule of a task's studies; a default that is not ``published`` is not kept."""
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
        """Return the objective's name without ``val_``."""
        return self.objective.removeprefix("val_")

    @property
    def pairs_accuracy(self) -> bool:
        """Return True if the guard needs the standard error of lost accuracy."""
        return self.accuracy_tolerance is not None and self.accuracy_errors > 0

    def plain(self) -> dict[str, Any]:
        """Return the rule for the journal, without newer fields that are unused."""
        later = ("accuracy_errors", "keep_default", "stop")
        return {k: value for k, value in asdict(self).items() if value or k not in later}

    def score(
        self,
        metrics: Mapping[str, float],
        reference: Mapping[str, float] | None = None,
        error: float = 0.0,
    ) -> float:
        """Return the guarded objective of validation metrics (fractions); lower is better.

        Args:
            metrics: Validation metrics of the trial.
            reference: Metrics of the configuration with which the guard compares; None for no
                guard.
            error: Paired standard error of the difference in accuracy from the reference.
        """
        value = metrics[self.objective]
        if reference is None or self.accuracy_tolerance is None:
            return value
        floor = reference["val_acc"] - self.accuracy_tolerance - self.accuracy_errors * error
        return value + max(0.0, floor - metrics["val_acc"])

    def choose(
        self, ranked: Sequence[Rank], margin: Callable[[Rank, Rank], Margin]
    ) -> tuple[Rank, Margin | None]:
        """Return the chosen trial, and the best trial's margin over the published default.

        The margin is None if the choice did not depend on it; ``margin`` computes it.
        """
        best = min(ranked)
        default = next((rank for rank in ranked if rank.number == DEFAULT), None)
        if not self.keep_default or default is None or best is default:
            return best, None
        ahead = margin(best, default)
        return best if ahead.clear(self.keep_default) else default, ahead


def stands_for_choice(role: str, status: str) -> bool:
    """Return True if a trial with that role and status may be chosen."""
    return role == SEARCH and status == FINISHED
