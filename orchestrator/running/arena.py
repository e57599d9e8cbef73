"""Every calibrator of a sweep of logits at its published values, many fits a process.

What a sweep gives each fit (a trial, a run, an artifact, its cross-fit) takes longer than the fit,
and chooses nothing where nothing is searched.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeAlias

import torch

from orchestrator.running.data import prepare_data
from orchestrator.statistics import ARENA_METRICS
from orchestrator.storage.results import StudyResult
from orchestrator.sweep.plan import Plan, StudyPlan, make_plan, searches
from orchestrator.sweep.spec import SweepSpec
from trainables.calibrators import Calibrator, FitWarning, calibrator_from_recipe
from trainables.common.errors import InputError
from trainables.data import PreparedData
from trainables.metrics import calibration_report

_Part: TypeAlias = tuple[str, Mapping[str, Any]] | None  # A calibrator and its parameters.


@dataclass(frozen=True)
class _Split:
    """One split of one task, and what is to be fitted on it: recipe to part and parameters."""

    task: str
    seed: int
    data: str
    rows: int
    recipes: Mapping[str, _Part]


@dataclass(frozen=True)
class _Figures:
    """Test metrics, fractions, and the processor's seconds of the fit; or why there are none."""

    metrics: Mapping[str, float]
    seconds: float = 0.0
    reason: str = ""


def run_arena(
    spec: SweepSpec,
    workers: int | None = None,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> list[StudyResult]:
    """Fit every recipe of a sweep of logits on every split, and judge it on the split's test rows.

    The splits are those that a run of the sweep would prepare; nothing is tracked or stored beside
    them. A fit that the rows do not allow fails its study, with the reason.

    Args:
        spec: A sweep whose tasks are logits and which searches nothing.
        workers: Processes; one a core if left out.
        done: Told how many splits are done, and how many there are.

    Returns:
        One result a recipe and task, in the order of the sweep file; its ``seconds`` are those of
        the processor in the fit alone.

    Raises:
        InputError: If the sweep is of another kind, or its data cannot be read.
    """
    if not spec.given:
        raise InputError(f"sweep {spec.name!r}: an arena needs tasks with logits")
    if searches(spec):
        raise InputError(
            f"sweep {spec.name!r}: an arena fits published values; set search.trials to 1"
        )
    plan, data = make_plan(spec), prepare_data(spec)
    # The longest first, so that no process is left with one of them at the end.
    splits = sorted(_splits(plan, data), key=lambda split: -split.rows)
    found: dict[tuple[str, int], dict[str, _Figures]] = {}
    # Fresh processes: one that is forked off a process with threads may wait for them for good.
    count = min(len(splits), workers or len(os.sched_getaffinity(0)))
    given = (splits[0].recipes,)
    with ProcessPoolExecutor(count, get_context("spawn"), _warm_up, given) as pool:
        jobs = {pool.submit(_fit_all, split): split for split in splits}
        for number, job in enumerate(as_completed(jobs), 1):
            found[jobs[job].task, jobs[job].seed] = job.result()
            done(number, len(splits))
    return [
        _result(spec.name, study, [found[study.task.id, seed] for seed in spec.seeds])
        for study in plan
        if study.row
    ]


def _splits(plan: Plan, data: Mapping[str, PreparedData]) -> Iterator[_Split]:
    for task in plan.spec.tasks:
        studies = [study for study in plan if study.row and study.task.id == task.id]
        recipes = {study.recipe.name: _part(plan.spec, study) for study in studies}
        for seed in plan.spec.seeds:
            own = data[task.data_name(seed)]
            rows = own.counts["validation"]
            yield _Split(task.id, seed, str(own.directory), rows, recipes)


def _part(spec: SweepSpec, study: StudyPlan) -> _Part:
    part = study.recipe.calibrator
    return (spec.base(part), study.defaults[part]) if part else None


def _warm_up(recipes: Mapping[str, _Part]) -> None:
    """Fit each calibrator on a few rows, so that no fit's seconds hold what it imports."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(64, 3, generator=draw), torch.randint(3, (64,), generator=draw)
    for part in filter(None, recipes.values()):
        with suppress(InputError):  # What so few rows do not allow.
            _fitted(*part, rows, labels)


def _fit_all(split: _Split) -> dict[str, _Figures]:
    prepared = PreparedData.open(split.data)
    fit, test = prepared.search().validation, prepared.test()
    rows, labels = torch.from_numpy(fit.values.copy()), torch.from_numpy(fit.labels.copy())
    judged, truth = torch.from_numpy(test.values.copy()), torch.from_numpy(test.labels.copy())
    figures = {}
    for recipe, part in split.recipes.items():
        started = time.process_time()
        try:
            calibrator = part and _fitted(*part, rows, labels)
        except InputError as error:
            figures[recipe] = _Figures({}, reason=str(error))
            continue
        seconds = time.process_time() - started
        report = calibration_report(
            logits=calibrator(judged) if calibrator else judged, labels=truth, metrics=ARENA_METRICS
        )
        figures[recipe] = _Figures(report, seconds)
    return figures


def _fitted(
    name: str, parameters: Mapping[str, Any], rows: torch.Tensor, labels: torch.Tensor
) -> Calibrator:
    with warnings.catch_warnings():  # What a fit doubts shows in its figures.
        warnings.simplefilter("ignore", FitWarning)
        return calibrator_from_recipe(name, parameters).fit(rows, labels)


def _result(sweep: str, study: StudyPlan, splits: list[dict[str, _Figures]]) -> StudyResult:
    seeds = [split[study.recipe.name] for split in splits]
    reason = next((seed.reason for seed in seeds if seed.reason), "")
    whole = [seed for seed in seeds if not seed.reason]
    return StudyResult(
        sweep=sweep,
        task=study.task.id,
        recipe=study.recipe.name,
        status="failed" if reason else "finished",
        configuration=study.defaults,
        test=tuple(dict(seed.metrics) for seed in whole),
        trials_finished=len(whole),
        trials_failed=len(seeds) - len(whole),
        reason=reason,
        dataset=study.task.dataset_name,
        model=study.task.model,
        protocol=study.task.protocol_name,
        seconds=tuple(seed.seconds for seed in whole),
    )
