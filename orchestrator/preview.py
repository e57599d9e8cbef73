"""What a sweep would compute and what is stored already, found without computing or writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator._state import SweepState
from orchestrator._study import Outcome
from orchestrator.journal import read_events
from orchestrator.plan import Plan
from orchestrator.run import JOURNAL
from orchestrator.tracking import stage_seconds
from trainables.artifacts import ArtifactStore
from trainables.data import PreparedData, find_prepared
from trainables.stages import STAGES

__all__ = ["StagePreview", "preview"]


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


def preview(plan: Plan) -> list[StagePreview]:
    """Go through a sweep as far as stored outcomes reach.

    A study suggests its next trials from the results of those before, so what can be told is: the
    trials up to the first one that is not stored, and the most that is left to compute. Nothing is
    read but journal, store, prepared data and tracking store; nothing is written.

    Args:
        plan: The sweep.
    """
    reused = _reused(plan)
    planned: Counter[tuple[str, str]] = Counter()
    for study in plan:
        planned[study.task.id, study.stage] += study.trials + len(plan.spec.seeds) - 1
    return [
        StagePreview(
            task,
            stage,
            count - reused[task, stage],
            reused[task, stage],
            stage_seconds(plan.spec.tracking_uri, task, stage),
        )
        for (task, stage), count in sorted(planned.items(), key=_order)
    ]


def _order(entry: tuple[tuple[str, str], int]) -> tuple[str, int]:
    (task, stage), _ = entry
    return task, STAGES.index(stage)


def _reused(plan: Plan) -> Counter[tuple[str, str]]:
    data = _prepared(plan)
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


def _prepared(plan: Plan) -> dict[str, PreparedData]:
    spec = plan.spec
    found = {
        task.id: find_prepared(
            task.dataset, Path(spec.data_root), task.split_spec, spec.storage_path / "data"
        )
        for task in spec.tasks
    }
    return {task: data for task, data in found.items() if data is not None}


def _history(plan: Plan) -> list[dict[str, Any]]:
    path = plan.spec.directory / JOURNAL
    return read_events(path)[0] if path.exists() else []


def _forget(event: Mapping[str, Any]) -> None:
    """Take an event that belongs into no journal."""
