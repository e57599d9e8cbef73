"""Reports the progress of this process to its parent, which kills it if reports stop."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

BUSY = 0.05  # A process that uses this share of one processor is computing.
_steps = 0


def beat() -> None:
    """Record that the computation made a step, such as a batch."""
    global _steps
    _steps += 1


def tell_progress(
    tell: Callable[[], None], seconds: float, waits: Callable[[], bool] = lambda: False
) -> None:
    """Start a thread that calls ``tell`` every ``seconds`` if the process made progress.

    Progress is a call of ``beat``, or processor time (some code computes for hours without
    ``beat``). ``tell`` is also called if ``waits()`` is true: the process waits for work. A process
    that is stopped, or waits for data or a file system, makes no progress.
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
    """Kill a process and its descendants.

    If ``began`` is given and is not the process's creation time, the id belongs to a newer process,
    and nothing is killed.
    """
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if began is not None and process.create_time() != began:
            return
        for each in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                each.kill()
