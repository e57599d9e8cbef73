"""An executor that computes in this very process, one job after the other."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from orchestrator.executors._base import Executor
from orchestrator.loop import Loop, Pause
from trainables.data import sealed_within
from trainables.plugins import Pinned
from trainables.worker import Bench, Worker

HELD_SECONDS = 0.5  # Between two looks at whether the sweep is still held.


@dataclass
class InProcess(Executor):
    """For tests, notebooks and tiny sweeps: nothing has to start first.

    Test data are out of reach while a search runs, as in every other executor, and then no longer.

    Args:
        storage: Root of the artifact store.
        checkpoint_seconds, logs, plugins: See ``Bench``.
    """

    storage: Path
    checkpoint_seconds: float | None = None
    logs: Path | None = None
    plugins: Sequence[Pinned] = ()

    def run(self, loop: Loop, sealed: bool = True) -> None:
        with sealed_within() if sealed else nullcontext():
            worker = Worker(Bench(sealed=sealed, **vars(self)))
            try:
                while (job := loop.next()) is not Pause.DONE:
                    if isinstance(job, Pause):
                        time.sleep(HELD_SECONDS)
                        continue
                    worker.open(job)
                    while not (report := worker.step()).ended:
                        loop.take(job, report)
                    loop.take(job, report)
            finally:
                worker.close()
