import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from lab import Lab
from sweeps import Command, Sweep, alive

from orchestrator.storage.storage import SweepFolder

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1800)]
SIZE = {"recipes": "ce, ls+ts", "trials": 2, "epochs": 60}
SWEEPS, TRIES = 12, 5
SECONDS = 10.0  # Within which a stopped sweep has ended.
GRACE = 1.0  # Seconds after that in which its last process is gone.
PHASES = {
    "preparing": "",
    "Ray starts": "sweep_started",
    "a trial begins": "trial_started",
    "training": "epoch",
    "a trial ends": "trial_finished",
    "measuring": "evaluated",
}
"""What is told at first in a phase; of preparing there is the owner alone."""
WAYS = {
    "SIGINT to all": (signal.SIGINT, True, 1),
    "SIGINT to all, twice": (signal.SIGINT, True, 2),
    "SIGTERM": (signal.SIGTERM, False, 1),
    "SIGTERM to all": (signal.SIGTERM, True, 1),
    "SIGHUP to all": (signal.SIGHUP, True, 1),
}


@pytest.fixture(scope="module", autouse=True)
def heard() -> Iterator[None]:
    """Have commands hear what ``nohup`` and ``&`` have this process ignore, and so them."""
    ignored = {number for number, *_ in WAYS.values() if signal.getsignal(number) == signal.SIG_IGN}
    for number in ignored:
        signal.signal(number, _go_on)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def _go_on(*_: object) -> None:
    """Take a signal; in a program started meanwhile it is as usual again."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("signals"), **SIZE)


@pytest.fixture(scope="module")
def calm(lab: Lab) -> Sweep:
    sweep = lab.sweep()
    done = sweep.start().wait()
    assert done.code == 0, done.errors
    return sweep


@pytest.mark.parametrize("seed", range(SWEEPS))
def test_a_stopped_sweep_ends_soon_leaves_no_process_and_can_be_resumed(seed, lab, calm):
    chance, wrong = random.Random(seed), []
    sweep = lab.sweep()
    for _ in range(TRIES):
        phase, way = chance.choice(list(PHASES)), chance.choice(list(WAYS))
        delay = chance.uniform(0, 2)
        command = sweep.resume() if sweep.journal.exists() else sweep.start()
        wait_for(sweep, command, phase)
        time.sleep(delay)
        told, faults = stopped(sweep, command, way)
        print(f"{seed}: {way} {delay:.1f} s after {phase}: {told} {faults}")  # noqa: T201
        wrong += [f"{way} {delay:.1f} s after {phase}: {fault}" for fault in faults]
        if command.process.returncode == 0:  # It finished before it heard: the next is another.
            wrong += differences(sweep, calm)
            sweep = lab.sweep()
    done = sweep.resume().wait() if sweep.journal.exists() else sweep.start().wait()
    assert (done.code, "Traceback" in done.errors) == (0, False), done.errors
    assert [*wrong, *differences(sweep, calm)] == []


def differences(sweep: Sweep, calm: Sweep) -> list[str]:
    same = figures(sweep) == figures(calm)
    return [*sweep.faults(calm), *(() if same else ("figures differ",))]


def wait_for(sweep: Sweep, command: Command, phase: str) -> None:
    """Wait until a phase has begun, or the command has ended."""
    kind = PHASES[phase]
    before = len(sweep.events(kind))
    folder = SweepFolder(sweep.directory)
    sweep.wait_for(command, lambda: len(sweep.events(kind)) > before if kind else folder.is_owned())


def stopped(sweep: Sweep, command: Command, way: str) -> tuple[str, list[str]]:
    """Signal a command; return what became of it, and what is not as it must be."""
    number, everyone, times = WAYS[way]
    started = time.monotonic()
    for _ in range(times):
        if everyone:
            command.send(number)
        elif command.running():
            os.kill(command.process.pid, number)
        time.sleep(0.2)
    done = command.wait()
    seconds = time.monotonic() - started
    while left := [p for p in command.family() if is_left(p)]:
        if time.monotonic() - started > seconds + GRACE:
            break
        time.sleep(0.05)
    names = [str(process) for process in left]
    ended = [event.status for event in sweep.events("sweep_ended")][-1:]
    finished = done.code == 0 and ended == ["finished"]
    faults = {
        f"exit code {done.code}": done.code != 130 and not finished,
        f"{seconds:.1f} s": seconds > SECONDS,
        f"left behind: {names}": bool(names),
        f"a traceback: {done.errors[-1500:]}": "Traceback" in done.errors,
    }
    return f"{done.code} after {seconds:.1f} s", [fault for fault, wrong in faults.items() if wrong]


def is_left(process: psutil.Process) -> bool:
    """Return True for what runs, but for what delivers after a sweep, as it should."""
    try:
        return alive(process) and "orchestrator.tracking" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # It has ended meanwhile.
        return False


def figures(sweep: Sweep) -> list[Any]:
    return sorted((e.study, e.seed, sorted(e.metrics.items())) for e in sweep.events("evaluated"))
