"""Records processor use and the progress of tracking while many trials report."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from _noop_sweep import memory
from _team_server import TeamServer

EVERY = 1.0
SENT = "val_sent"
"""The metric that holds when a report was sent, in seconds since 1970."""

REACHED = "SELECT run_uuid, step, timestamp FROM latest_metrics WHERE key = %s"


@dataclass
class Watch:
    """Samples once a second, from the moment at which all trials are there.

    Args:
        trials: So many there will be.
        seconds: How long they report.
        folder: Each trial puts a file here when it is there; ``go`` tells them to begin.
        server: The tracking server.
    """

    trials: int
    seconds: float
    folder: Path
    server: TeamServer
    shipper: int = 0
    began: float = 0.0
    reached: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    workers: tuple[int, float] = (0, 0.0)
    driver_memory: tuple[float, float] = (0.0, 0.0)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self, state: object, shipper: object) -> None:
        """Begin, given what ``run_no_ops`` hands over."""
        self.shipper = shipper.process.pid  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, with a last look: everything has been delivered."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _look_on(self) -> None:
        while len(list(self.folder.glob("ready-*"))) < self.trials:
            if self._over.wait(0.5):
                return
        self.began = time.time()
        (self.folder / "go").touch()
        before, first = processor_seconds(self.groups()), memory()
        with contextlib.closing(self.server.connect()) as database:
            middle = True
            while not self._over.wait(EVERY):
                self._see(database)
                if middle and time.time() - self.began > self.seconds / 2:
                    middle, self.workers = False, (len(self.forks()), shared(self.forks()))
                if not self.shares and time.time() - self.began > self.seconds - 5:
                    after, passed = processor_seconds(self.groups()), time.time() - self.began
                    self.shares = {who: (after[who] - before[who]) / passed for who in after}
                    self.driver_memory = first, memory()
            self._see(database)

    def _see(self, database: Any) -> None:
        """Note how far every run has got on the server."""
        with database.cursor() as cursor:
            cursor.execute(REACHED, (SENT,))
            self.reached.append((time.time(), {run: step for run, step, _ in cursor.fetchall()}))

    def forks(self) -> list[psutil.Process]:
        """Return the workers."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "serve" in words and str(self.folder) in words:
                found += process.children()
        return found

    def groups(self) -> dict[str, list[psutil.Process]]:
        """Return the measured processes."""
        driver, server, postgres = psutil.Process(), self.server.process, self.server.postgres
        workers = self.forks()
        others = [
            child
            for child in driver.children(recursive=True)
            if child.pid not in {self.shipper, server.pid, postgres.pid}
            and child not in server.children(recursive=True)
            and child not in postgres.children()
            and child not in workers
        ]
        return {
            "driver (calsweep, Optuna, Tune's loop)": [driver],
            "shipper": [psutil.Process(self.shipper)],
            "trials": workers,
            "Ray's own processes": others,
            "MLflow server": [server, *server.children(recursive=True)],
            "PostgreSQL": [postgres, *postgres.children()],
        }


def processor_seconds(groups: dict[str, list[psutil.Process]]) -> dict[str, float]:
    """Return the seconds of processor time that each group has used."""
    return {who: sum(_used(members)) for who, members in groups.items()}


def _used(members: list[psutil.Process]) -> Iterator[float]:
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            yield times.user + times.system


def shared(members: list[psutil.Process]) -> float:
    """Return the megabytes that processes take together, shared ones counted once."""
    total = 0.0
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss / 1e6
    return total
