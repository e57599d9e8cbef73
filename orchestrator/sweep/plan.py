"""Plan the studies of a sweep, ordered by their dependencies."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.sweep.names import BASELINES, study_id
from orchestrator.sweep.recipes import Recipe, narrow, parameters_of, parse_recipe, part_spaces
from orchestrator.sweep.spec import StageResources, SweepSpec, TaskSpec
from search_spaces import Parameter
from trainables.calibrators import parse_calibrator
from trainables.common.stages import GIVEN

MANY = 10**9  # More configurations than any budget.
# Calibrators whose trials are suggested in blocks, so that old sweep files give the same trials.
BLOCKWISE = ("ts", "cts", "vs")


@dataclass(frozen=True)
class StudyPlan:
    """The search for one recipe's hyper-parameters on one task.

    Attributes:
        row: Whether it is a row of the table; False if only other studies need it.
        points: Number of different configurations, at most ``MANY``.
        defaults: Starting values of parameters, by part.
        reference: Study with which the accuracy guard compares: plain cross-entropy, or the logits
            as given.
        blockwise: Whether its trials may be suggested in blocks, see ``StudySearch``.
        published: Whether the starting values of all searched parameters come from papers. Only
            then does the choice prefer the first trial (in sweeps of older versions, always).
        portfolio: Configurations (keys ``part.name``) that did well on other tasks.
    """

    task: TaskSpec
    recipe: Recipe
    row: bool
    trials: int
    points: int
    searched: dict[str, dict[str, Parameter]] = field(hash=False)
    defaults: dict[str, dict[str, Any]] = field(hash=False)
    upstream: str | None = None
    reference: str | None = None
    blockwise: bool = False
    published: bool = True
    portfolio: tuple[dict[str, Any], ...] = field(default=(), hash=False)

    @cached_property
    def id(self) -> str:
        """Return the study's name."""
        return study_id(self.task.id, self.recipe.name)

    @property
    def stage(self) -> str:
        """Return the stage that the study's trials compute."""
        return self.recipe.stage


@dataclass(frozen=True)
class Plan:
    """All studies of a sweep, each after the studies on which it depends."""

    spec: SweepSpec
    studies: tuple[StudyPlan, ...]

    def __iter__(self) -> Iterator[StudyPlan]:
        return iter(self.studies)

    @property
    def trials(self) -> int:
        """Return the number of trials of all searches and of further seeds."""
        return self.stage_trials().total()

    def stage_trials(self) -> Counter[str]:
        """Return the number of trials by stage."""
        counts: Counter[str] = Counter()
        for study in self.studies:
            counts[study.stage] += study.trials + len(self.spec.all_seeds) - 1
        return counts

    def shares(self) -> dict[str, StageResources]:
        """Return the resources per trial of each stage, by its key in ``resources``."""
        keys = map(resources_key, self.stage_trials())
        return {key: getattr(self.spec.resources, key) for key in keys}

    def at_once(self) -> dict[str, int]:
        """Return the maximum number of concurrent trials per stage, with the keys of ``shares``."""
        lag, seeds = self.spec.search.parallel_trials, len(self.spec.all_seeds) - 1
        counts: Counter[str] = Counter()
        for study in self:
            searched = study.trials if study.blockwise else min(lag, study.trials)
            counts[resources_key(study.stage)] += max(searched, seeds)
        limit = self.spec.resources.concurrent
        return {key: min(count, limit or count) for key, count in counts.items()}


def resources_key(stage: str) -> str:
    """Return a stage's key in ``resources``; given logits use ``calibrate``."""
    return "calibrate" if stage == GIVEN else stage


def make_plan(spec: SweepSpec) -> Plan:
    """Return the studies of a sweep, including upstream studies and the guard's references."""
    rows = spec.expanded
    names = {recipe.name for recipe in rows}
    guarded = spec.search.accuracy_tolerance is not None
    guard = [parse_recipe(BASELINES[spec.given], given=spec.given)] if guarded else []
    recipes = {link.name: link for recipe in [*guard, *rows] for link in recipe.chain}
    studies = [
        _study(spec, task, recipe, recipe.name in names)
        for task in spec.tasks
        for recipe in sorted(recipes.values(), key=lambda recipe: len(recipe.chain))
    ]
    return Plan(spec, tuple(studies))


def searches(spec: SweepSpec) -> bool:
    """Return True if any study of a sweep has more than one trial."""
    return any(study.trials > 1 for study in make_plan(spec))


def _study(spec: SweepSpec, task: TaskSpec, recipe: Recipe, row: bool) -> StudyPlan:
    searched = {part: searched_parameters(spec, part, task) for part in recipe.own_parts}
    defaults = {part: _defaults(spec, part, task, found) for part, found in searched.items()}
    sizes = [_size(p) for parameters in searched.values() for p in parameters.values()]
    points = min(math.prod(sizes), MANY)
    baseline = BASELINES[spec.given]
    guarded = spec.search.accuracy_tolerance is not None and recipe.name != baseline
    return StudyPlan(
        task=task,
        recipe=recipe,
        row=row,
        trials=points if spec.search.sampler == "grid" else min(spec.search.trials, points),
        points=points,
        searched=searched,
        defaults=defaults,
        published=all(
            _is_published(spec, task, part, parameter, defaults[part][name])
            for part, found in searched.items()
            for name, parameter in found.items()
        ),
        upstream=study_id(task.id, recipe.upstream.name) if recipe.upstream else None,
        reference=study_id(task.id, baseline) if guarded else None,
        blockwise=_is_blockwise(spec, recipe),
        portfolio=tuple(_portfolio(spec, searched)),
    )


def _portfolio(
    spec: SweepSpec, searched: Mapping[str, Mapping[str, Parameter]]
) -> Iterator[dict[str, Any]]:
    """Yield configurations that did well on other tasks, as first trials of sampler ``prior``.

    There are none unless the study searches all parameters of a single part.
    """
    if spec.search.sampler != "prior" or len(searched) != 1:
        return
    [(part, parameters)] = searched.items()
    if spec.fixed(part):
        return
    for point in (p for space in part_spaces(spec.base(part)) for p in space.portfolio):
        if point.keys() != parameters.keys():
            continue
        values = {name: starting_value(p, point[name]) for name, p in parameters.items()}
        if values == point:
            yield {f"{part}.{name}": value for name, value in values.items()}


def searched_parameters(spec: SweepSpec, part: str, task: TaskSpec) -> dict[str, Parameter]:
    """Return the parameters of a part that a study searches, with the sweep's ranges."""
    rules, ranges = spec.search, spec.search.spaces.get(part, {})
    by_paper = rules.budget == "paper"
    whole = rules.sampler != "grid" and rules.tune is None
    named = {*(rules.tune or {}).get(part, ())}
    found: dict[str, Parameter] = {}
    for name, parameter in parameters_of(spec.base(part)).items():
        if name in spec.fixed(part):
            continue
        if name in ranges:
            found[name] = ranges[name].applied_to(parameter)
        elif by_paper and _left_to_search(parameter, task, rules.tune is None or name in named):
            grid = parameter.grids.get(str(spec.fixed(part).get("variant")), parameter.grid)
            found[name] = narrow(parameter, {"choices": grid}) if grid else parameter
        elif not by_paper and (name in named or (whole and parameter.search)):
            found[name] = parameter
    return found


def _left_to_search(parameter: Parameter, task: TaskSpec, tunable: bool) -> bool:
    """Return True if a paper used a parameter on a task without stating its value.

    If ``tunable``, also if a paper tuned it there.
    """
    place = task.dataset, task.model
    return parameter.is_open(*place) or (tunable and parameter.tuned_on(*place))


def starting_values(spec: SweepSpec, part: str, task: TaskSpec) -> dict[str, Any]:
    """Return the values of a part's parameters: those the sweep fixes, else the task's defaults.

    See ``SearchSpace.default_point``.
    """
    point: dict[str, Any] = {}
    for space in part_spaces(spec.base(part)):
        point.update(space.default_point(task.dataset, task.model, spec.fixed(part)))
    return point


def _defaults(
    spec: SweepSpec, part: str, task: TaskSpec, searched: Mapping[str, Parameter]
) -> dict[str, Any]:
    """Return ``starting_values``, and the defaults of searched parameters that these lack."""
    point = starting_values(spec, part, task)
    return {**point, **{name: p.default for name, p in searched.items() if name not in point}}


def starting_value(parameter: Parameter, value: Any) -> Any:
    """Return a published value; outside the range, its nearest end (the default for choices)."""
    if parameter.type == "categorical":
        return value if value in parameter.choices else parameter.default
    return parameter.check(min(max(value, parameter.low), parameter.high))


def _is_published(
    spec: SweepSpec, task: TaskSpec, part: str, searched: Parameter, value: Any
) -> bool:
    """Return True if the starting value of a searched parameter comes from a paper."""
    known, place = parameters_of(spec.base(part))[searched.name], (task.dataset, task.model)
    published = not known.is_ours(*place) and not known.is_open(*place)
    return published and starting_value(searched, value) == value


def _is_blockwise(spec: SweepSpec, recipe: Recipe) -> bool:
    if recipe.calibrator is None:
        return recipe.stage == "refine"
    return parse_calibrator(spec.base(recipe.calibrator))[0] in BLOCKWISE


def _size(parameter: Parameter) -> int:
    if parameter.type == "categorical":
        return len(parameter.choices)
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.type == "int":
        return int(parameter.high) - int(parameter.low) + 1
    return 1 if parameter.low == parameter.high else MANY
