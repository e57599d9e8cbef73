"""What a sweep would compute and what is stored already, found without computing or writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator._state import SweepState, setting_of
from orchestrator._study import Outcome
from orchestrator.journal import read_events
from orchestrator.plan import Plan
from orchestrator.run import JOURNAL
from orchestrator.spec import SweepSpec, TaskSpec
from orchestrator.tracking import stage_seconds
from trainables.artifacts import ArtifactStore
from trainables.data import PreparedData, find_prepared, missing_download
from trainables.errors import InputError
from trainables.stages import STAGES
from trainables.suites import find_suite

__all__ = ["DataPreview", "StagePreview", "preview", "preview_data"]


@dataclass(frozen=True)
class StagePreview:
    """The trials of one stage of one task.

    Attributes:
        task: The task.
        stage: ``train``, ``refine`` or ``calibrate``.
        computed: Trials that will be computed, at most.
        reused: Trials whose outcome an earlier run or another sweep has left behind.
        seconds: What one takes, from earlier runs on the tracking store; None if none tells.
    """

    task: str
    stage: str
    computed: int
    reused: int
    seconds: float | None

    @property
    def hours(self) -> float | None:
        """Return the hours of one after another."""
        return None if self.seconds is None else self.computed * self.seconds / 3600


@dataclass(frozen=True)
class DataPreview:
    """The data of a sweep's tasks.

    Attributes:
        prepared: What is stored already, by task.
        missing: What a run would download first, a line each.
    """

    prepared: Mapping[str, PreparedData]
    missing: tuple[str, ...] = ()


def preview_data(spec: SweepSpec) -> DataPreview:
    """Look at the data of every task as a run does, but for images and downloads.

    Raises:
        InputError: What a run would refuse; the text names the task.
    """
    prepared: dict[str, PreparedData] = {}
    missing: list[str] = []
    for number, task in enumerate(spec.tasks):
        try:
            found = _prepared(task, spec)
            missing += _missing(task, spec, found)
        except InputError as error:
            raise InputError(f"tasks[{number}] ({task.id}): {error}") from error
        if found is not None:
            prepared[task.id] = found
    return DataPreview(prepared, tuple(dict.fromkeys(missing)))


def preview(plan: Plan, data: DataPreview | None = None) -> list[StagePreview]:
    """Go through a sweep as far as stored outcomes reach.

    A study suggests its next trials from the results of those before, so what can be told is: the
    trials up to the first one that is not stored, and the most that is left to compute. Nothing is
    read but journal, store, prepared data and tracking store; nothing is written.

    Args:
        plan: The sweep.
        data: Its data; by default they are looked for.

    Raises:
        InputError: See ``preview_data``.
    """
    prepared = (preview_data(plan.spec) if data is None else data).prepared
    reused = _reused(plan, prepared)
    planned: Counter[tuple[str, str]] = Counter()
    for study in plan:
        planned[study.task.id, study.stage] += study.trials + len(plan.spec.seeds) - 1
    return [
        StagePreview(
            task,
            stage,
            count - reused[task, stage],
            reused[task, stage],
            _seconds(plan.spec, task, stage, prepared),
        )
        for (task, stage), count in sorted(planned.items(), key=_order)
    ]


def _order(entry: tuple[tuple[str, str], int]) -> tuple[str, int]:
    (task, stage), _ = entry
    return task, STAGES.index(stage)


def _seconds(
    spec: SweepSpec, name: str, stage: str, data: Mapping[str, PreparedData]
) -> float | None:
    if name not in data:
        return None
    task = next(task for task in spec.tasks if task.id == name)
    return stage_seconds(spec.tracking_uri, name, setting_of(task, data[name]), stage)


def _reused(plan: Plan, data: Mapping[str, PreparedData]) -> Counter[tuple[str, str]]:
    known = Plan(plan.spec, tuple(study for study in plan if study.task.id in data))
    store = ArtifactStore(plan.spec.storage_path / "artifacts")
    history = _history(plan)
    sweep_id = next((event["sweep_id"] for event in history if "sweep_id" in event), "")
    state = SweepState(known, sweep_id, data, _forget, history, store.contains)
    while (trial := state.next_trial()) is not None:
        key = trial.request.key()
        if store.contains(trial.request.stage, key):
            state.record(trial, Outcome("finished", store.metrics(trial.request.stage, key), key))
    counts: Counter[tuple[str, str]] = Counter()
    for study in state.studies.values():
        counts[study.plan.task.id, study.plan.stage] += len(study.outcomes)
    return counts


def _prepared(task: TaskSpec, spec: SweepSpec) -> PreparedData | None:
    place = spec.storage_path / "data"
    return find_prepared(task.dataset, Path(spec.data_root), task.split_spec, place)


def _missing(task: TaskSpec, spec: SweepSpec, found: PreparedData | None) -> Iterator[str]:
    """Yield what a task would download first; what is stored already needs no source."""
    root = Path(spec.data_root)
    if found is None:
        yield from filter(None, [missing_download(task.dataset, root, task.split_spec)])
    for suite in (find_suite(name, root) for name in task.suites):
        if found is not None:
            suite.check(found.info)
        yield from filter(None, [suite.missing_download()])


def _history(plan: Plan) -> list[dict[str, Any]]:
    path = plan.spec.directory / JOURNAL
    return read_events(path)[0] if path.exists() else []


def _forget(event: Mapping[str, Any]) -> None:
    """Take an event that belongs into no journal."""
