"""An executor that computes in this very process, one job after the other."""

from contextlib import nullcontext
from pathlib import Path

from orchestrator.executors._base import Executor
from orchestrator.loop import Loop, Pause
from trainables.data import sealed_within
from trainables.worker import Bench, Worker


class InProcess(Executor):
    """For tests, notebooks and tiny sweeps: nothing has to start first.

    Test data are out of reach while a search runs, as in every other executor, and then no longer.

    Args:
        storage: Root of the artifact store.
        checkpoint_every: See ``Bench``.
    """

    def __init__(self, storage: Path, checkpoint_every: int = 0) -> None:
        self._storage, self._every = storage, checkpoint_every

    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Compute one job after the other."""
        with sealed_within() if sealed else nullcontext():
            bench = Bench(self._storage, sealed=sealed, checkpoint_every=self._every)
            worker = Worker(bench)
            try:
                while not isinstance(job := loop.next(), Pause):
                    worker.open(job)
                    while not (report := worker.step()).ended:
                        loop.take(job, report)
                    loop.take(job, report)
            finally:
                worker.close()
