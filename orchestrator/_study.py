"""One study: an Optuna study whose suggestions depend on nothing but the results before them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import Trial, TrialState

from orchestrator.plan import StudyPlan
from orchestrator.spec import SearchModel

__all__ = ["MACHINE", "Outcome", "StudySearch"]

optuna.logging.set_verbosity(optuna.logging.ERROR)

WIDE_BLOCK = 64
MACHINE = "machine"


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        status: ``finished``, ``pruned`` or ``failed``.
        metrics: Figures of the last epoch, fractions.
        artifact: Key of the stored outcome; empty unless finished.
        reason: Why it failed.
        fault: ``MACHINE`` if it failed by no fault of its configuration; else empty.
    """

    status: str
    metrics: dict[str, float]
    artifact: str = ""
    reason: str = ""
    fault: str = ""


class StudySearch:
    """Asks Optuna for configurations and tells it how they did, in the order of trial numbers.

    Trial n is suggested once trials up to n - ``parallel_trials`` are done, and Optuna hears of
    those and no others before it answers. So the suggestions are a function of the results alone,
    not of which trial happened to end first, and a resumed sweep repeats them.

    Args:
        plan: What is searched.
        rules: Sampler, budget and lag.
        seed: The sweep's first seed.
        block: Trials suggested at once, which the sampler hears of together; if left out, what
            suits the plan.
    """

    def __init__(
        self, plan: StudyPlan, rules: SearchModel, seed: int, block: int | None = None
    ) -> None:
        self.plan = plan
        self.lag = rules.parallel_trials
        self.block = block or _block(plan, rules)
        self.asked = 0
        self._told = 0
        self._waiting: dict[int, tuple[float | None, Outcome]] = {}
        self._trials: dict[int, Trial] = {}
        self._distributions = {
            f"{part}.{name}": parameter.distribution()
            for part, parameters in plan.searched.items()
            for name, parameter in parameters.items()
        }
        self._study = optuna.create_study(
            direction="minimize", sampler=_sampler(rules, _seed(plan.id, seed))
        )
        for point in self._first_points():
            self._study.enqueue_trial(point)

    def _first_points(self) -> list[dict[str, Any]]:
        """Return the published default; all points, that one first, where the budget holds them."""
        default = {name: _default(self.plan, name) for name in self._distributions}
        if self.plan.points > self.plan.trials:
            return [default]
        values = map(_values, self._distributions.values())
        grid = [dict(zip(default, point, strict=True)) for point in product(*values)]
        return sorted(grid, key=lambda point: point != default)

    def may_ask(self) -> bool:
        """Tell whether the next configuration can be suggested now."""
        if self.asked >= self.plan.trials:
            return False
        return all(number in self._waiting for number in self._needed())

    def _needed(self) -> range:
        """Return the trials that the sampler must hear of before it suggests the next one."""
        if self.block > 1:
            return range(self._told, self.asked - self.asked % self.block)
        return range(self._told, self.asked - self.lag + 1)

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Return the next trial's number and its searched parameters, as ``part.name``."""
        for number in self._needed():
            self._tell(number)
        number = self.asked
        self._trials[number] = self._study.ask(self._distributions)
        self.asked += 1
        return number, dict(self._trials[number].params)

    def score(self, number: int, value: float | None, outcome: Outcome) -> None:
        """Hand in a finished trial's objective (None for a failed one)."""
        self._waiting[number] = (value, outcome)

    def _tell(self, number: int) -> None:
        value, outcome = self._waiting.pop(number)
        self._told += 1
        if value is None:
            self._study.tell(self._trials[number], state=TrialState.FAIL)
        elif outcome.status == "pruned":
            self._study.tell(self._trials[number], state=TrialState.PRUNED)
        else:
            self._study.tell(self._trials[number], value)


def _block(plan: StudyPlan, rules: SearchModel) -> int:
    """Return how many trials are suggested at once; 1 for a study whose trials run on their own."""
    if not plan.together or rules.scheduler != "none":
        return 1
    return max(rules.parallel_trials, WIDE_BLOCK if rules.sampler in ("random", "grid") else 1)


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return every value of a distribution that has a few."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, IntDistribution):
        return range(distribution.low, distribution.high + 1)
    return (distribution.low,)  # type: ignore[attr-defined]


def _default(plan: StudyPlan, name: str) -> Any:
    """Return the published value, moved into the sweep's own range where that excludes it."""
    part, key = name.split(".", 1)
    parameter, value = plan.searched[part][key], plan.defaults[part][key]
    if parameter.type == "categorical":
        return value if value in parameter.choices else parameter.default
    return parameter.check(min(max(value, parameter.low), parameter.high))


def _seed(study: str, seed: int) -> int:
    digest = hashlib.sha256(f"{study}|{seed}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _sampler(rules: SearchModel, seed: int) -> optuna.samplers.BaseSampler:
    startup = min(10, max(1, rules.trials // 3))
    if rules.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if rules.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, multivariate=True)
