from typing import Any

from trainables.common.pulse import beat
from trainables.jobs import Cost, EpochMetrics, Fault, FaultKind, Job, Report, StageWork, Status
from trainables.stages import StageRun, TaskData, with_objective
from trainables.store.artifacts import Artifact, ArtifactStore
from trainables.store.checkpoints import Checkpoint
from trainables.store.leases import Lease
from trainables.store.locks import ArtifactLock
from trainables.worker._bench import Bench, Computation

WAIT_SECONDS = 0.2  # Pause of a job that waits for another one that computes the same stage.


class StageComputation(Computation):
    """Computes a stage, or takes its outcome from the store.

    Every so many seconds the state of the stage is written beside the artifacts, under the stage's
    key: so a job resumes there whether its process, its node or the driver died, and in whichever
    trial or sweep the same stage is requested again.
    """

    def __init__(self, bench: Bench, job: Job, work: StageWork) -> None:
        super().__init__(bench, f"{work.request.stage} of {'+'.join(work.request.parts)}")
        self._work, self._request, self._graph = work, work.request, job.graph
        self._run: StageRun | None = None
        self._lock: ArtifactLock | Lease | None = None
        self._saved = 0.0

    def advance(self) -> Status:
        """Compute some epochs; store the outcome after the last one."""
        started = self.bench.clock()
        try:
            run = self._run or self._begin()
            if run is None:
                return Status.FINISHED if self.reused else Status.WAITING
            while run.epoch < run.epochs:
                with self.bench.meter.epoch():
                    self.metrics = run.run_epoch()
                beat()
                self.history.append(EpochMetrics(run.epoch, self.metrics))
                if self.bench.clock() - started > self.bench.report_seconds:
                    break
            if run.epoch < run.epochs:
                return Status.RUNNING
            spent = self.seconds + self.bench.clock() - started
            run.finish(self.metrics, [vars(epoch) for epoch in self.history], spent)
            self.bench.store.settle()
            return Status.FINISHED
        finally:
            self.seconds += self.bench.clock() - started

    def outcome(self) -> dict[str, Any]:
        return {"artifact": self._request.key()}

    def _begin(self) -> StageRun | None:
        """Open the stage; None if another worker has computed it or is computing it now."""
        data = self.bench.task(self._request.data, self._graph)
        lock = self.bench.store.lock(self._request.ref)
        if not lock.take():
            self.bench.pause(WAIT_SECONDS)
            return None
        self._lock = lock
        if found := self.bench.store.find(self._request.ref):
            self.metrics, self.history = _told(found, self._work.score)
            self.reused = True
        else:
            self._run = self._opened(data)
        return self._run

    def _opened(self, data: TaskData) -> StageRun:
        """Return the stage's run, resumed from a checkpoint if there is one that fits."""
        run, checkpoint = self._fresh_run(data), self._checkpoint
        if not checkpoint.exists():
            return run
        try:
            state = checkpoint.read()
            run.load_state_dict(state["stage"])
        except Exception as error:  # noqa: BLE001 - there is no telling how damage shows
            told = f"checkpoint {checkpoint} is damaged ({type(error).__name__})"
            self.bench.notices.append(f"{told}: the stage starts anew")
            checkpoint.remove()
            run.close()
            return self._fresh_run(data)
        self.seconds = self._saved = state["seconds"]
        self.history = [EpochMetrics(**epoch) for epoch in state["history"]]
        self.bench.notices.append(f"{self.what} resumes after epoch {run.epoch} of {run.epochs}")
        return run

    def _fresh_run(self, data: TaskData) -> StageRun:
        run = self.bench.open_run(self._request, self._work.together, data)
        run.ask_for(self._work.score)
        return run

    @property
    def _checkpoint(self) -> Checkpoint:
        return self.bench.store.checkpoint(self._request.ref)

    def rest(self) -> None:
        """Give a sign of life, and store the state of the unfinished stage if its turn has come."""
        if self._lock is not None:
            self._lock.keep()
        if self._run is None:
            return
        every = self.bench.checkpoint_seconds
        if every is not None and self.seconds - self._saved >= every:
            self._saved = self.seconds
            history = [vars(epoch) for epoch in self.history]
            content = {"stage": self._run.state_dict(), "seconds": self.seconds}
            self._checkpoint.write({**content, "history": history})

    def ended(self, fault: Fault | None) -> None:
        """Remove the checkpoint, unless the stage failed by no fault of its own."""
        final = fault is None or fault.kind == FaultKind.CONFIGURATION
        if final and self._run is not None:
            self._checkpoint.remove()

    def close(self) -> None:
        """Forget the stage and pass its lock on."""
        if self._run is not None:
            self._run.close()
        self._run = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _told(found: Artifact, score: str) -> tuple[dict[str, float], list[EpochMetrics]]:
    """Return the metrics of a stored outcome, the score among them, and its epochs."""
    metrics = with_objective(found.record["metrics"], score, found)
    return metrics, [EpochMetrics(**epoch) for epoch in found.record["history"]]


def stored_report(store: ArtifactStore, job: Job) -> Report | None:
    """Return the report on a job whose outcome is stored here, or None if a worker is needed.

    Outcomes of the jobs of one pass are stored when its first one ends. Trained networks are left
    to workers: to check one takes longer than a loop that serves all jobs may stand still.
    """
    work = job.work
    if not isinstance(work, StageWork) or work.request.stage == "train":
        return None
    ref = work.request.ref
    # Nothing is fetched from a bucket first, which takes time too.
    if not store.holds(ref) or (found := store.find(ref)) is None:
        return None
    metrics, history = _told(found, work.score)
    cost = Cost(reused=True)
    return Report(
        status=Status.FINISHED, metrics=metrics, history=history, artifact=ref.key, cost=cost
    )
