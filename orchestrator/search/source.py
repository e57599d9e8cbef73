"""The search as a source of jobs: what a trial is to an executor, and a report to a study."""

from typing import Any

from orchestrator.loop import Pause, Source
from orchestrator.search.choice import SEARCH
from orchestrator.search.state import SweepState
from orchestrator.search.trials import TrialSpec
from orchestrator.storage.events import TrialFinished
from orchestrator.sweep.plan import StudyPlan
from orchestrator.sweep.spec import TrainResources
from trainables.common.faults import is_final
from trainables.common.stages import STAGES
from trainables.jobs import FaultKind, Job, Report, StageWork, Status


class SearchSource(Source):
    """Gives out the trials of a sweep's studies as jobs."""

    def __init__(self, state: SweepState) -> None:
        self._state, self._spec = state, state.plan.spec
        self._out: dict[str, TrialSpec] = {}
        stages = [getattr(self._spec.resources, stage) for stage in STAGES]
        self.sizes = [(stage.cpu, stage.gpu) for stage in stages]

    def next(self) -> Job | Pause:
        trial = self._state.next_trial()
        if trial is None:
            return Pause.DONE if self._state.finished else Pause.WAIT
        self._out[trial.key] = trial
        return self._job(trial)

    def _job(self, trial: TrialSpec) -> Job:
        study, resources = self._state.studies[trial.study], self._spec.resources
        share = getattr(resources, trial.request.stage)
        stoppable = trial.role == SEARCH and self._spec.search.scheduler == "asha"
        score = study.rule.objective
        return Job(
            key=trial.key,
            group=trial.study,
            number=trial.number,
            work=StageWork(request=trial.request, together=trial.together, score=score),
            cpus=share.cpu,
            gpus=share.gpu,
            processes=share.together if isinstance(share, TrainResources) else 1,
            deterministic=resources.deterministic,
            graph=resources.graph,
            epochs=epochs_of(study.plan) if stoppable else 0,
        )

    def ended(self, job: Job, report: Report) -> None:
        trial = self._out.pop(job.key)
        self._state.record(trial, ending(trial, report))


def epochs_of(study: StudyPlan) -> int:
    """Return the epochs of a study's trials."""
    if study.stage == "train":
        return study.task.resolved_protocol.epochs
    return max(int(values.get("epochs", 1)) for values in study.defaults.values())


def ending(trial: TrialSpec, report: Report) -> TrialFinished:
    """Return the event of a trial's last report."""
    cost, facts = report.cost, dict[str, Any]()
    if cost.epoch_seconds and not cost.reused:
        facts = {"epoch_seconds": cost.epoch_seconds, "peak_memory": cost.peak_memory}
    metrics = report.metrics
    if report.status == Status.FINISHED:
        facts["artifact"] = report.artifact
    if report.status == Status.FAILED and report.fault is not None:
        by_machine = report.fault.kind == FaultKind.MACHINE
        metrics = {} if by_machine else metrics
        facts |= {
            "reason": report.fault.reason,
            "fault": FaultKind.MACHINE if by_machine and not is_final(report.fault.reason) else "",
            "host": report.host or None,
            "traceback": report.fault.traceback or None,
        }
    seconds = round(cost.seconds, 3)
    return trial.ending(report.status, metrics, reused=cost.reused, seconds=seconds, **facts)
