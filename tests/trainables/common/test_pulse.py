import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from trainables.common import pulse
from trainables.common.pulse import beat, kill_tree, tell_progress

# It starts a process of its own, tells its number, and stops.
STOPPED = """
import os, signal, subprocess
print(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL).pid, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


class Over(Exception):
    pass


def signs(
    monkeypatch: pytest.MonkeyPatch,
    intervals: list[Callable[[], None]],
    spent: list[float],
    waits: bool = False,
) -> list[int]:
    """Return the intervals of ten seconds in which progress was told.

    Each does something, and takes so many seconds of a processor.
    """
    now, count, told = [0.0], [-1], list[int]()

    def sleep(seconds: float) -> None:
        count[0] += 1
        if count[0] == len(intervals):
            raise Over
        intervals[count[0]]()
        now[0] += spent[count[0]]

    def start(target: Callable[[], None], **_: object) -> SimpleNamespace:
        return SimpleNamespace(start=target)

    monkeypatch.setattr(pulse, "time", SimpleNamespace(sleep=sleep, process_time=lambda: now[0]))
    monkeypatch.setattr(pulse, "threading", SimpleNamespace(Thread=start))
    with pytest.raises(Over):
        tell_progress(lambda: told.append(count[0]), 10.0, lambda: waits)
    return told


def nothing() -> None:
    pass


def test_batches_and_cpu_time_count_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that tells takes a little of it itself, and so do threads that look for data."""
    intervals = [nothing, beat, nothing, nothing, nothing]
    assert signs(monkeypatch, intervals, [0.0, 0.0, 0.4, 0.6, 0.1]) == [1, 3]


def test_process_that_waits_for_work_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signs(monkeypatch, [nothing, nothing], [0.0, 0.0], waits=True) == [0, 1]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_stopped_process_is_killed_with_all_that_it_started() -> None:
    parent = subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    here = psutil.Process(parent.pid)
    kill_tree(parent.pid, here.create_time() + 1)  # That was another process of this number.
    assert parent.poll() is None
    kill_tree(parent.pid, here.create_time())
    assert parent.wait(10) == -9
    until = time.monotonic() + 10  # The system ends a killed process a little later.
    while is_alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_alive(child)
    parent.stdout.close()
    kill_tree(parent.pid)
