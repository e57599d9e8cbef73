"""An executor that computes in this process, one job after the other."""

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

HELD_SECONDS = 0.5  # Time between two checks whether the sweep is still paused.


@dataclass
class InProcess(Executor):
    """Computes in this process, one job after the other.

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
