"""What a sweep will compute: its studies in the order in which they build on each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from orchestrator.journal import study_id
from orchestrator.recipes import Recipe, parse_recipe
from orchestrator.spec import SweepSpec, TaskSpec
from search_spaces import Parameter
from trainables.calibrators import CALIBRATORS, parse_calibrator

__all__ = ["BASELINE", "Plan", "StudyPlan", "make_plan", "study_id"]

BASELINE = "ce"  # The model that the accuracy guard compares with.
MANY = 10**9  # More configurations than any budget.


@dataclass(frozen=True)
class StudyPlan:
    """The search for one recipe's hyper-parameters on one task.

    Attributes:
        task: The task.
        recipe: The recipe.
        row: Whether the sweep asked for it; False if it is only there because others build on it.
        trials: Trials to run on the first seed.
        points: Different configurations that there are, at most ``MANY``.
        searched: Part to the parameters that are searched.
        defaults: Part to every parameter's starting value.
        upstream: Study whose chosen configuration this one builds on.
        reference: Study of plain cross-entropy that the accuracy guard compares with.
        together: Whether its trials may be computed together, one pass for several of them.
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
    together: bool = False

    @property
    def id(self) -> str:
        """Return the study's name."""
        return study_id(self.task.id, self.recipe.name)

    @property
    def stage(self) -> str:
        """Return the stage that the study's trials compute."""
        return self.recipe.stage


@dataclass(frozen=True)
class Plan:
    """All studies of a sweep, each after those it builds on."""

    spec: SweepSpec
    studies: tuple[StudyPlan, ...]

    def __iter__(self) -> Iterator[StudyPlan]:
        """Iterate over the studies."""
        return iter(self.studies)

    @property
    def trials(self) -> int:
        """Return the number of search trials plus the further seeds of chosen configurations."""
        return sum(study.trials + len(self.spec.seeds) - 1 for study in self.studies)

    def stage_trials(self) -> Counter[str]:
        """Return the number of trials by stage."""
        counts: Counter[str] = Counter()
        for study in self.studies:
            counts[study.stage] += study.trials + len(self.spec.seeds) - 1
        return counts


def make_plan(spec: SweepSpec) -> Plan:
    """Lay out the studies of a sweep.

    Recipes that others build on, and plain cross-entropy where the accuracy guard is on, join as
    studies that are no rows of the table.

    Args:
        spec: The checked sweep.
    """
    asked = spec.expanded()
    names = {recipe.name for recipe in asked}
    guard = [parse_recipe(BASELINE)] if spec.search.accuracy_tolerance is not None else []
    ordered = _with_upstream([*guard, *asked])
    studies = [
        _study(spec, task, recipe, recipe.name in names)
        for task in spec.tasks
        for recipe in sorted(ordered, key=_depth)
    ]
    return Plan(spec, tuple(studies))


def _with_upstream(recipes: Iterable[Recipe]) -> list[Recipe]:
    found: dict[str, Recipe] = {}
    for recipe in recipes:
        chain = [recipe]
        while chain[-1].upstream is not None:
            chain.append(chain[-1].upstream)
        for link in reversed(chain):
            found.setdefault(link.name, link)
    return list(found.values())


def _depth(recipe: Recipe) -> int:
    return 0 if recipe.upstream is None else 1 + _depth(recipe.upstream)


def _study(spec: SweepSpec, task: TaskSpec, recipe: Recipe, row: bool) -> StudyPlan:
    searched = {part: spec.searched(part) for part in recipe.own_parts}
    points = _points(searched)
    guarded = spec.search.accuracy_tolerance is not None and recipe.name != BASELINE
    return StudyPlan(
        task=task,
        recipe=recipe,
        row=row,
        trials=points if spec.search.sampler == "grid" else min(spec.search.trials, points),
        points=points,
        searched=searched,
        defaults={part: spec.defaults(part, task) for part in recipe.own_parts},
        upstream=study_id(task.id, recipe.upstream.name) if recipe.upstream else None,
        reference=study_id(task.id, BASELINE) if guarded else None,
        together=_together(spec, recipe),
    )


def _together(spec: SweepSpec, recipe: Recipe) -> bool:
    """Tell whether trials gain by a common pass; those that do not run side by side instead."""
    if recipe.stage == "calibrate" and recipe.calibrator is not None:
        name, _ = parse_calibrator(spec.base(recipe.calibrator))
        return CALIBRATORS.get(name).joins_pass
    return recipe.stage == "refine"


def _points(searched: dict[str, dict[str, Parameter]]) -> int:
    """Return how many different configurations there are, at most ``MANY``."""
    sizes = [_size(p) for parameters in searched.values() for p in parameters.values()]
    return min(math.prod(sizes), MANY)


def _size(parameter: Parameter) -> int:
    if parameter.type == "categorical":
        return len(parameter.choices)
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.type == "int":
        return int(parameter.high) - int(parameter.low) + 1
    return 1 if parameter.low == parameter.high else MANY
