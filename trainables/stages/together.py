from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from trainables.common.errors import TrainingDivergedError
from trainables.refinements import HeadsTogether
from trainables.stages.base import StageRun, TaskData, open_stage
from trainables.stages.refine import RefineStage
from trainables.stages.request import StageRequest
from trainables.store.artifacts import Artifact, ArtifactStore


class RefineTogether(StageRun):
    """The run of one refinement, with others of the same extractor carried along.

    To its trial it is an ordinary run. Outcomes of the others are stored when it finishes, so that
    their own trials need no process; one that diverges, or loses its accuracy, is left out, and
    fails in its own trial. None has begun before.
    """

    def __init__(self, run: RefineStage, others: Sequence[RefineStage]) -> None:
        super().__init__(run.request, run.store, run.data)
        self.shared_seconds = run.shared_seconds
        self._run, self._others = run, list(others)
        self._heads = HeadsTogether([member.trainer for member in (run, *others)])
        self._histories: dict[str, list[dict[str, Any]]] = {
            other.request.key(): [] for other in others
        }

    @property
    def epochs(self) -> int:
        return self._run.epochs

    def ask_for(self, metric: str) -> None:
        """Add a validation metric to those of every member."""
        for member in (self._run, *self._others):
            member.ask_for(metric)

    def run_epoch(self) -> dict[str, float]:
        """Retrain all heads for one epoch and validate; return the figures of the one asked for."""
        figures = self._heads.train_epoch()
        outputs = self._heads.logits(self._run.features["validation"])
        self.epoch = self._run.trainer.epoch
        found = self._run.judged(figures[0], outputs[0])
        for other, own, logits in zip(tuple(self._others), figures[1:], outputs[1:], strict=True):
            try:
                metrics = other.judged(own, logits)
            except TrainingDivergedError:
                self._leave_out(other)
                continue
            self._histories[other.request.key()].append({"step": self.epoch, "metrics": metrics})
        return found

    def _leave_out(self, member: RefineStage) -> None:
        self._others.remove(member)
        self._heads.drop(member.trainer)

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the arrays to store of the requested refinement."""
        return self._run.outcome()

    def remarks(self) -> list[str]:
        return self._run.remarks()

    def finish(
        self,
        metrics: Mapping[str, float],
        history: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> Artifact:
        """Store the outcome of every refinement with its share of the cost; return the own."""
        share = None if seconds is None else seconds / (1 + len(self._others))
        for other in self._others:
            own = self._histories[other.request.key()]
            other.finish(own[-1]["metrics"], own, share)
        return super().finish(metrics, history, share)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every head; to the one asked for it is that of a run alone."""
        return {
            **self._run.state_dict(),
            "others": {other.request.key(): other.state_dict() for other in self._others},
            "histories": self._histories,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume with those that were there when the state was taken."""
        self._run.load_state_dict(state)
        self.epoch = self._run.epoch
        carried = state.get("others", {})
        self._histories = state.get("histories", {})
        for other in list(self._others):
            key = other.request.key()
            if key in carried:
                other.load_state_dict(carried[key])
            else:
                self._leave_out(other)


def open_together(
    request: StageRequest, others: Sequence[StageRequest], store: ArtifactStore, data: TaskData
) -> StageRun:
    """Make ready to compute a stage, and refinements with a refinement where that costs little.

    ``others`` are what will be asked for next. For errors see ``open_stage``.
    """
    run = open_stage(request, store, data)
    key = run.trainer.refinement.together_key() if isinstance(run, RefineStage) else None
    if not isinstance(run, RefineStage) or key is None:
        return run
    members = [
        RefineStage(other, store, data, run.features)
        for other in others
        if (other.stage, other.upstream) == (request.stage, request.upstream)
        and list(other.parts) == list(request.parts)
        and not store.contains(other.stage, other.key())
    ]
    fitting = [member for member in members if member.trainer.refinement.together_key() == key]
    return RefineTogether(run, fitting) if fitting else run
