"""An Optuna study whose suggestions depend only on earlier results, not on their timing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from orchestrator.search.prior import MODELLED, Next, first_points, suggestion
from orchestrator.sweep.plan import StudyPlan, starting_value
from orchestrator.sweep.spec import SearchModel
from search_spaces import Parameter
from trainables.common.later import optuna
from trainables.metrics import METRICS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState

WIDE_BLOCK = 64


class StudySearch:
    """Asks Optuna for configurations and reports their results, in the order of trial numbers.

    Trial n is suggested once all trials up to n - ``parallel_trials`` have ended. Optuna has then
    received exactly their results, and its random numbers depend on n alone. So suggestions do not
    depend on the order in which trials end, and a resumed sweep reuses its old suggestions. If
    ``block`` is above 1, each block is instead suggested as a whole, once all trials of earlier
    blocks have ended.
    """

    def __init__(
        self, plan: StudyPlan, rules: SearchModel, seed: int, block: int | None = None
    ) -> None:
        self.plan = plan
        self.lag = rules.parallel_trials
        self.block = block or _block(plan, rules)
        self.asked, self.trials = 0, plan.trials
        self._points: list[dict[str, Any]] = []
        self._values: list[float | None] = []
        self._modelled: tuple[int, Next] | None = None
        self._told = 0
        self._pareto = rules.pareto
        self._waiting: dict[int, tuple[TrialState, list[float] | None]] = {}
        # Trials of an earlier run and their results. Optuna gets them when it must suggest a trial.
        self._kept: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, tuple[TrialState, list[float] | None]] = {}
        self._distributions = {
            f"{part}.{name}": distribution_of(parameter)
            for part, parameters in plan.searched.items()
            for name, parameter in parameters.items()
        }
        self._rules, self._seed = rules, seed

    @cached_property
    def _study(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        directions = [optuna.study.StudyDirection.MINIMIZE, *map(_direction, self._pareto)]
        return optuna.create_study(directions=directions)

    @cached_property
    def _tpe(self) -> optuna.samplers.TPESampler:
        startup = _startup(self._rules)
        return optuna.samplers.TPESampler(n_startup_trials=startup, multivariate=True)

    @cached_property
    def _first(self) -> list[dict[str, Any]]:
        """Return the points that depend on no result, the published default first."""
        default = {name: _default(self.plan, name) for name in self._distributions}
        if self.plan.points > self.plan.trials:
            return first_points(self.plan, default) if self._rules.sampler == "prior" else [default]
        values = map(_values, self._distributions.values())
        grid = [dict(zip(default, point, strict=True)) for point in product(*values)]
        return sorted(grid, key=lambda point: point != default)

    def may_ask(self) -> bool:
        """Return True if the next configuration can be suggested now."""
        if self.asked >= self.trials:
            return False
        return all(number in self._waiting for number in self._needed())

    def _needed(self) -> range:
        """Return the trials that must be reported to the sampler before its next suggestion."""
        if self.block > 1:
            return range(self._told, self.asked - self.asked % self.block)
        return range(self._told, self.asked - self.lag + 1)

    def ask(self, parameters: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Return the next trial's number and parameters.

        ``parameters`` of an earlier run are used again if they are still in the search space.
        """
        self._report()
        number, parameters = self.asked, self._suggested(parameters)
        self.asked += 1
        self._points.append(parameters)
        return number, parameters

    def _suggested(self, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
        number = self.asked
        if parameters is not None and self._fits(parameters):
            self._kept[number] = dict(parameters)
            return self._kept[number]
        self._hand_over()
        seed = _seed(self.plan.id, self._seed, number)
        if number < len(self._first):
            self._study.enqueue_trial(self._first[number])
        elif self._rules.sampler == "prior" and number < MODELLED and not self._pareto:
            self._study.enqueue_trial(self.modelled().point)
        self._study.sampler = self._sampler(seed)
        return dict(self._study.ask(self._distributions).params)

    def heard(self) -> int:
        """Return the number of trials that the next suggestion may use."""
        return self._needed().stop

    def modelled(self) -> Next:
        """Return the Gaussian process's suggestion for the next trial and its expected gain."""
        self._report()
        if self._modelled is None or self._modelled[0] != self.asked:
            seed = _seed(self.plan.id, self._seed, self.asked)
            self._modelled = self.asked, suggestion(self.plan, self._points, self._values, seed)
        return self._modelled[1]

    def stop(self) -> None:
        """Suggest no further trial."""
        self.trials = self.asked

    def _report(self) -> None:
        for number in self._needed():
            self._tell(number)

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        if self._rules.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if self._rules.sampler == "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=_startup(self._rules))
        # Same as a new sampler with this seed, without drawing entropy for two unused generators.
        for state in (self._tpe._rng, self._tpe._random_sampler._rng):
            state.rng.seed(seed)
        return self._tpe

    def _fits(self, parameters: Mapping[str, Any]) -> bool:
        """Return True if parameters of an earlier run are still in the search space."""
        try:
            self._trial(parameters, optuna.trial.TrialState.RUNNING, None)
        except ValueError:
            return False
        return True

    def _trial(
        self, parameters: Mapping[str, Any], state: TrialState, values: list[float] | None
    ) -> FrozenTrial:
        return optuna.trial.create_trial(
            state=state, params=dict(parameters), distributions=self._distributions, values=values
        )

    def _hand_over(self) -> None:
        """Add the trials of an earlier run to Optuna's study, with their results if they ended."""
        for number, parameters in self._kept.items():
            state, values = self._ended.pop(number, (optuna.trial.TrialState.RUNNING, None))
            self._study.add_trial(self._trial(parameters, state, values))
        self._kept.clear()

    def score(
        self, number: int, value: float | None, status: str, metrics: Mapping[str, float] = {}
    ) -> None:
        """Record an ended trial's objective (None if it failed), status and ``metrics``."""
        others = [] if value is None else [metrics[f"val_{name}"] for name in self._pareto]
        values = [math.nan if value is None else value, *others]
        if any(map(math.isnan, values)):
            self._waiting[number] = optuna.trial.TrialState.FAIL, None
        elif status == "pruned":
            self._waiting[number] = optuna.trial.TrialState.PRUNED, None
        else:
            self._waiting[number] = optuna.trial.TrialState.COMPLETE, values

    def _tell(self, number: int) -> None:
        state, values = self._waiting.pop(number)
        self._told += 1
        self._values.append(None if values is None else values[0])
        if number in self._kept:
            self._ended[number] = state, values
        else:
            self._study.tell(number, values, state)


def _block(plan: StudyPlan, rules: SearchModel) -> int:
    """Return the number of trials suggested at once; 1 if not ``blockwise`` or with a scheduler."""
    if not plan.blockwise or rules.scheduler != "none":
        return 1
    return max(rules.parallel_trials, WIDE_BLOCK if rules.sampler in ("random", "grid") else 1)


def _direction(metric: str) -> StudyDirection:
    higher = METRICS[metric].better == "higher"
    directions = optuna.study.StudyDirection
    return directions.MAXIMIZE if higher else directions.MINIMIZE


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """Return the Optuna distribution of a searched parameter."""
    if parameter.type == "categorical":
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    assert parameter.low is not None
    assert parameter.high is not None
    log = parameter.scale == "log"
    if parameter.type == "int":
        return optuna.distributions.IntDistribution(
            int(parameter.low), int(parameter.high), log=log
        )
    return optuna.distributions.FloatDistribution(parameter.low, parameter.high, log=log)


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return every value of a distribution with few values."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, optuna.distributions.IntDistribution):
        return range(distribution.low, distribution.high + 1)
    return (distribution.low,)  # type: ignore[attr-defined]


def _default(plan: StudyPlan, name: str) -> Any:
    """Return a searched parameter's starting value, moved into the sweep's range if outside."""
    part, key = name.split(".", 1)
    return starting_value(plan.searched[part][key], plan.defaults[part][key])


def _seed(study: str, seed: int, number: int) -> int:
    digest = hashlib.sha256(f"{study}|{seed}|{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _startup(rules: SearchModel) -> int:
    return min(10, max(1, rules.trials // 3))
