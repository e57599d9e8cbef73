"""Trials: a configuration each, with the stage that computes it and a key for good."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.search.choice import SEARCH, SEED
from orchestrator.storage.events import TrialFinished, TrialStarted, fields_of
from orchestrator.sweep.plan import StudyPlan
from orchestrator.sweep.spec import SweepSpec
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData
from trainables.stages import StageRequest, stage_precision


@dataclass(slots=True, kw_only=True)
class TrialSpec(TrialStarted):
    """One configuration to compute, as the journal tells of it.

    Numbers of the further seeds of the chosen one come last; the key is the same when the sweep is
    resumed. Stages of the trials that come next may be computed ``together`` with its own.
    """

    request: StageRequest
    together: tuple[StageRequest, ...] = ()

    def starting(self) -> TrialStarted:
        """Return the event that gives the trial out."""
        return TrialStarted(**fields_of(self, TrialStarted))

    def ending(self, status: str, metrics: Mapping[str, float], **facts: Any) -> TrialFinished:
        """Return the event that tells how the trial ended."""
        return TrialFinished(key=self.key, status=status, metrics=metrics, **facts)


@dataclass(frozen=True)
class Ended:
    """A trial, how it ended, and what its study minimises: NaN before it is scored."""

    trial: TrialSpec
    outcome: TrialFinished
    objective: float = math.nan

    @property
    def ref(self) -> ArtifactRef:
        """Return the reference to the outcome that it left behind."""
        return ArtifactRef(self.trial.stage, self.outcome.artifact)


class TrialMaker:
    """Makes the trials of a sweep: the same parameters give the same trial, resumed or not."""

    def __init__(self, sweep_id: str, spec: SweepSpec, data: Mapping[str, PreparedData]) -> None:
        self._sweep_id, self._spec, self._data = sweep_id, spec, data
        self._protocols = {task.id: task.resolved_protocol.to_dict() for task in spec.tasks}

    def make(
        self,
        plan: StudyPlan,
        number: int,
        parameters: Mapping[str, Any],
        base: Ended | None,
        position: int = 0,
    ) -> TrialSpec:
        """Return a trial of a study, on the sweep's seed at a position; the search takes the first.

        ``base`` is what the trial builds on, None for a training.
        """
        parts, seed = _configured(plan, parameters), self._spec.all_seeds[position]
        training = self._spec.resources.train
        request = StageRequest(
            stage=plan.stage,
            parts={self._spec.base(part): values for part, values in parts.items()},
            data=str(self._data[plan.task.data_name(seed)].directory),
            model=plan.task.model,
            protocol=self._protocols[plan.task.id],
            seed=seed,
            upstream=base.ref.key if base else None,
            upstream_stage=base.ref.stage if base else None,
            upstream_request=base.trial.request.plain() if base else None,
            precision=stage_precision(plan.stage, training.gpu, training.precision),
            portable=self._spec.resources.portable,
        )
        role = SEED if position else SEARCH
        before = base.trial.configuration if base else {}
        identity = (self._sweep_id, plan.id, role, str(number), request.key())
        return TrialSpec(
            study=plan.id,
            number=number,
            key=hashlib.sha256("|".join(identity).encode()).hexdigest(),
            role=role,
            seed=request.seed,
            stage=plan.stage,
            parameters=dict(parameters),
            configuration={**before, **parts},
            request=request,
        )


def _configured(plan: StudyPlan, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every part's parameters: the searched ones as suggested, the others at default."""
    parts = {part: dict(values) for part, values in plan.defaults.items()}
    for name, value in parameters.items():
        part, parameter = name.split(".", 1)
        parts[part][parameter] = value
    return parts
