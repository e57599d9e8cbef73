"""An executor that computes in processes of this machine, without Ray."""

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from orchestrator.executors._base import Executor
from orchestrator.loop import Loop, Pause
from trainables.common.code import code_files
from trainables.jobs import Job, Report, lost
from trainables.plugins import Pinned
from trainables.worker import Bench, Worker

_worker: list[Worker] = []  # Of a process of the pool.


class Processes(Executor):
    """For many short jobs; each reports once, at its end.

    Args:
        storage: Root of the artifact store.
        count: Number of processes.
        plugins: See ``Bench``.
    """

    def __init__(self, storage: Path, count: int, plugins: Sequence[Pinned] = ()) -> None:
        self._storage, self._count, self._plugins = storage, count, tuple(plugins)

    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Compute as many jobs at once as there are processes; a dead one is replaced."""
        while not self._run_until_broken(loop, sealed):
            pass

    def _run_until_broken(self, loop: Loop, sealed: bool) -> bool:
        """Return True once the loop is done, False if a process died."""
        running: dict[Future[Report], Job] = {}
        # Fresh processes: one that is forked off a process with threads may wait for them for good.
        context, given = get_context("spawn"), (self._storage, sealed, self._plugins, code_files())
        with ProcessPoolExecutor(self._count, context, _begin, given) as pool:
            while True:
                while len(running) < self._count and not isinstance(job := loop.next(), Pause):
                    running[pool.submit(_compute, job)] = job
                if not running:
                    return True
                broken = False
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    broken |= isinstance(ended.exception(), BrokenProcessPool)
                    report = lost() if ended.exception() else ended.result()
                    loop.take(running.pop(ended), report)
                if broken and not running:
                    return False


def _begin(storage: Path, sealed: bool, plugins: Sequence[Pinned], code: Mapping[str, str]) -> None:
    every = float("inf")
    bench = Bench(storage, sealed=sealed, report_seconds=every, plugins=plugins, code=code)
    _worker.append(Worker(bench))


def _compute(job: Job) -> Report:
    (worker,) = _worker
    worker.open(job)
    while not (report := worker.step()).ended:
        pass
    return report
