"""Fits every calibrator of a sweep of logits with its published values, in parallel."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from orchestrator.executors.processes import Processes
from orchestrator.loop import Loop, Pause, Source
from orchestrator.running.data import prepare_data
from orchestrator.statistics import ARENA_METRICS
from orchestrator.storage.results import StudyResult
from orchestrator.storage.storage import Storage
from orchestrator.sweep.plan import Plan, StudyPlan, make_plan, searches
from orchestrator.sweep.spec import SweepSpec
from trainables.common.errors import InputError
from trainables.data import PreparedData
from trainables.jobs import Fit, FitWork, Job, Part, Report


class _Splits(Source):
    """Returns one job per split of each task; ``fits`` has the results by task and seed."""

    def __init__(self, jobs: Sequence[Job], done: Callable[[int, int], None]) -> None:
        self._left, self._count, self._done = list(jobs), len(jobs), done
        self.fits: dict[tuple[str, int], Mapping[str, Fit]] = {}
        self.sizes = [(1, 0.0)]

    def next(self) -> Job | Pause:
        return self._left.pop(0) if self._left else Pause.DONE

    def ended(self, job: Job, report: Report) -> None:
        """Store the fits of a job; fail if the job failed."""
        if report.fault is not None:
            raise InputError(f"{job.group}, seed {job.number}: {report.fault.reason}")
        self.fits[job.group, job.number] = report.fits
        self._done(len(self.fits), self._count)


def run_arena(
    spec: SweepSpec,
    workers: int | None = None,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> list[StudyResult]:
    """Fit every recipe of a sweep of logits on every split, and measure it on the test rows.

    Returns:
        One result per recipe and task, in the order of the plan; ``seconds`` are CPU seconds of
        the fit.
    """
    if not spec.given:
        raise InputError(f"sweep {spec.name!r}: an arena needs tasks with `logits`")
    if searches(spec):
        raise InputError(
            f"sweep {spec.name!r}: an arena uses published values; set search.trials to 1"
        )
    plan, data = make_plan(spec), prepare_data(spec)
    jobs = list(_jobs(plan, data))
    source = _Splits(jobs, done)
    count = min(len(jobs), workers or len(os.sched_getaffinity(0)))
    loop = Loop(source, lambda event: None, spec.resources.max_failures)
    Processes(count, Storage.of(spec).artifacts, plugins=spec.pinned).run(loop, sealed=False)
    return [
        _result(spec.name, study, [source.fits[study.task.id, seed] for seed in spec.seeds])
        for study in plan
        if study.row
    ]


def _jobs(plan: Plan, data: Mapping[str, PreparedData]) -> Iterator[Job]:
    """Yield a job per split, the longest first, so that all processes end together."""
    splits = [
        (data[task.data_name(seed)], task.id, seed)
        for task in plan.spec.tasks
        for seed in plan.spec.seeds
    ]
    for own, task, seed in sorted(splits, key=lambda split: -split[0].counts["validation"]):
        studies = [study for study in plan if study.row and study.task.id == task]
        parts = {study.recipe.name: _part(plan.spec, study) for study in studies}
        work = FitWork(data=str(own.directory), calibrators=parts, metrics=ARENA_METRICS)
        yield Job(key=f"{task} {seed}", group=task, number=seed, work=work)


def _part(spec: SweepSpec, study: StudyPlan) -> Part:
    part = study.recipe.calibrator
    return (spec.base(part), study.defaults[part]) if part else None


def _result(sweep: str, study: StudyPlan, splits: Sequence[Mapping[str, Fit]]) -> StudyResult:
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
