"""Stages that are computed together: refinements of one extractor, calibrations of one network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainables._calibrate_group import CalibrateGroup
from trainables._group_run import GroupRun
from trainables.artifacts import ArtifactStore
from trainables.errors import TrainingDivergedError
from trainables.metrics import calibration_reports
from trainables.refinements import HeadGroup
from trainables.stages import (
    CalibrateStage,
    RefineStage,
    StageRequest,
    StageRun,
    TaskData,
    open_stage,
)

__all__ = ["RefineGroup", "open_together"]


class RefineGroup(GroupRun[RefineStage]):
    """The run of one refinement, with others of the same extractor; see ``GroupRun``."""

    def __init__(self, run: RefineStage, others: Sequence[RefineStage]) -> None:
        super().__init__(run, others)
        self.shared_seconds = run.shared_seconds
        self._group = HeadGroup([member.trainer for member in (run, *others)])

    @property
    def epochs(self) -> int:
        """Return the refinement's epochs."""
        return self._run.epochs

    def run_epoch(self) -> dict[str, float]:
        """Retrain all heads for one epoch and validate; return the figures of the one asked for."""
        figures = self._group.train_epoch()
        self.epoch = self._run.trainer.epoch
        members = [self._run, *self._others]
        logits = [own.cpu() for own in self._group.logits(self._run.features["validation"])]
        for position in range(len(members) - 1, -1, -1):
            members[position].epoch = self.epoch
            if self._diverged(members[position], figures[position], logits[position]):
                del figures[position], logits[position]
        reports = calibration_reports(torch.stack(logits), self.data.validation_labels)
        found = [
            {**own, **{f"val_{name}": value for name, value in report.items()}}
            for own, report in zip(figures, reports, strict=True)
        ]
        for other, metrics in zip(self._others, found[1:], strict=True):
            self._histories[other.request.key()].append({"step": self.epoch, "metrics": metrics})
        return found[0]

    def _diverged(self, member: RefineStage, figures: Mapping[str, float], logits: Tensor) -> bool:
        """Tell whether a member diverged, and leave it out.

        Raises:
            TrainingDivergedError: If it is the refinement that was asked for.
        """
        try:
            member.check_finite(figures, logits)
        except TrainingDivergedError:
            if member is self._run:
                raise
            self._others.remove(member)
            self._group.drop(member.trainer)
            return True
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every head."""
        return {
            "run": self._run.state_dict(),
            "others": {other.request.key(): other.state_dict() for other in self._others},
            "histories": self._histories,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with those that were there when the state was taken."""
        self._run.load_state_dict(state["run"])
        self.epoch = self._run.epoch
        self._histories = state["histories"]
        for other in list(self._others):
            key = other.request.key()
            if key in state["others"]:
                other.load_state_dict(state["others"][key])
            else:
                self._others.remove(other)
                self._group.drop(other.trainer)


def open_together(
    request: StageRequest, others: Sequence[StageRequest], store: ArtifactStore, data: TaskData
) -> StageRun:
    """Make ready to compute a stage, and others with it where that costs hardly more.

    Args:
        request: What is asked for.
        others: What will be asked for next.
        store: Where artifacts lie.
        data: The task's data.
    """
    run = open_stage(request, store, data)
    join = _JOINS.get(type(run))
    if join is None:
        return run
    lacking = [
        other
        for other in others
        if _same_pass(request, other) and not store.contains(other.stage, other.key())
    ]
    return join(run, lacking)


def _with_refinements(run: RefineStage, others: Sequence[StageRequest]) -> StageRun:
    key = run.trainer.refinement.pass_key()
    if key is None:
        return run
    members = [RefineStage(other, run.store, run.data, run.features) for other in others]
    fitting = [member for member in members if member.trainer.refinement.pass_key() == key]
    return RefineGroup(run, fitting) if fitting else run


def _with_calibrations(run: CalibrateStage, others: Sequence[StageRequest]) -> StageRun:
    if not run.build().joins_pass:
        return run
    same_folds = [other for other in others if other.seed == run.request.seed]
    members = [CalibrateStage(other, run.store, run.data) for other in same_folds]
    fitting = [member for member in members if member.build().joins_pass]
    return CalibrateGroup(run, fitting) if fitting else run


_JOINS: dict[type[StageRun], Callable[[Any, Sequence[StageRequest]], StageRun]] = {
    RefineStage: _with_refinements,
    CalibrateStage: _with_calibrations,
}


def _same_pass(one: StageRequest, other: StageRequest) -> bool:
    return (one.stage, one.upstream, list(one.parts)) == (
        other.stage,
        other.upstream,
        list(other.parts),
    )
