"""Signs of progress of this process. Its parent kills it if they stop for too long."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

BUSY = 0.05  # Share of one processor with which a process counts as computing.
_steps = 0


def beat() -> None:
    """Say that the computation came a step further, such as a batch."""
    global _steps
    _steps += 1


def tell_progress(
    tell: Callable[[], None], seconds: float, waits: Callable[[], bool] = lambda: False
) -> None:
    """Call ``tell`` from a thread every so many seconds in which this process made progress.

    Or in which it ``waits`` for work.

    A call of ``beat`` is progress, and so is processor time: code that never calls it may compute
    for hours. A process that is stopped, or waits for data or a file system, does neither.
    """

    def run() -> None:
        steps, spent = _steps, time.process_time()
        while True:
            time.sleep(seconds)
            now = time.process_time()
            if waits() or _steps != steps or now - spent > BUSY * seconds:
                tell()
            steps, spent = _steps, now

    threading.Thread(target=run, name="progress", daemon=True).start()


def kill_tree(pid: int, began: float | None = None) -> None:
    """Kill a process that ``began`` then, and all that it started, stopped ones too."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if began is not None and process.create_time() != began:
            return
        for each in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                each.kill()
