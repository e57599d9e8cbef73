"""What every fault needs: folders, random moments, undisturbed sweeps, servers, a row to fill."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Cluster, TrackingServer
from sweeps import Command, Done, Sweep, gone

INTERRUPTED, WRONG_INPUT, FAILED = 130, 2, 1


@dataclass
class Row:
    """What was done to one sweep and what became of it."""

    fault: str
    done: str
    happened: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def expect(self, **truths: bool) -> None:
        """Keep what does not hold."""
        self.wrong += [name.replace("_", " ") for name, holds in truths.items() if not holds]

    def text(self) -> str:
        happened = "; ".join(self.happened)
        wrong = f" **WRONG: {'; '.join(self.wrong)}**" if self.wrong else ""
        return f"| {self.fault} | {self.done} | {happened}{wrong} |"


class Lab:
    """Gives out folders, random numbers and the sweep that nothing disturbs."""

    def __init__(self, folder: Path, seed: int, **changes: Any) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.changes = changes
        self._count = 0
        self._calm: dict[str, Sweep] = {}

    def place(self) -> Path:
        self._count += 1
        path = self.folder / str(self._count)
        path.mkdir(parents=True)
        return path

    def sweep(self, storage: Path | None = None, **changes: Any) -> Sweep:
        return Sweep(self.place(), storage, **{**self.changes, **changes})

    def calm(self, **changes: Any) -> Sweep:
        """Return the same sweep after an undisturbed run."""
        name = str(sorted(changes.items()))
        if name not in self._calm:
            sweep = self.sweep(**changes)
            done = sweep.start().wait()
            assert done.code == 0, done
            self._calm[name] = sweep
        return self._calm[name]

    def wait(self, sweep: Sweep, command: Command, most: float = 0.7) -> float:
        """Wait until a random part of the trials has ended, and a moment longer; return it all."""
        part = int(self.random.uniform(0, most) * len(self.calm().finished()))
        started = time.monotonic()
        assert sweep.wait_for_trials(command), command.errors
        sweep.wait_for(command, lambda: len(sweep.finished()) >= part)
        time.sleep(self.random.uniform(0, 1.5))
        return time.monotonic() - started


Fault = Callable[[Lab], Iterator[Row]]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


def brief(done: Done) -> str:
    """Return a command's last line of complaint, its paths shortened."""
    lines = [line for line in done.errors.splitlines() if line.startswith("calsweep: ")]
    return f"exit code {done.code}" + (f", `{_short(lines[-1])}`" if lines else "")


def _short(text: str) -> str:
    return " ".join(
        word if "/" not in word else f".../{'/'.join(word.split('/')[-2:])}"
        for word in text.split()
    )


def one_line(done: Done) -> bool:
    """Tell whether the command complained in one line, without a traceback."""
    complaints = [line for line in done.errors.splitlines() if line.startswith("calsweep: ")]
    return len(complaints) == 1 and "Traceback" not in done.errors + done.output


def prefix(one: list[str], other: list[str]) -> bool:
    return other[: len(one)] == one


def killed(lab: Lab, wanted: Callable[[Sweep], object], most: float = 0.7, **changes: Any) -> Sweep:
    """Return a sweep whose driver was killed at a random moment at which something was there.

    Args:
        lab: Gives the sweep.
        wanted: Returns what must be there.
        most: Part of the trials that may have ended before.
        changes: What differs from the usual sweep.
    """
    sweep = lab.sweep(**changes)
    command = sweep.start()
    lab.wait(sweep, command, most)
    assert sweep.wait_for(command, lambda: bool(wanted(sweep))), "it ended too early"
    command.process.kill()
    command.process.wait()
    gone(command)
    return sweep


@contextlib.contextmanager
def server() -> Iterator[tuple[TrackingServer, Path]]:
    """Start a tracking server with a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        found = TrackingServer(Path(name), environment)
        try:
            yield found, Path(name)
        finally:
            found.kill()


@contextlib.contextmanager
def cluster(lab: Lab) -> Iterator[Cluster]:
    found = Cluster(lab.place() / "nodes.log")
    try:
        yield found
    finally:
        found.end()
