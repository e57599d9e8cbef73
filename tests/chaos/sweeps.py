"""A small real sweep, run by its command as a user would, and what it leaves behind."""

import contextlib
import json
import os
import secrets
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from orchestrator.storage.journal import read_events

NAME = "faulty"
SWEEP = """
name: {name}
tasks:
  - name: digits/convnet/faulty
    dataset: digits
    model: {model}
    protocol: {{base: digits, epochs: {epochs}}}
recipes: [{recipes}]
search:
  trials: {trials}
  accuracy_tolerance: 0.05
  fixed: {fixed}
resources: {{checkpoint_seconds: 0, max_failures: 20{resources}}}
tracking: {{uri: {tracking}}}
storage: {storage}
"""
USUAL = {
    "name": NAME,
    "model": "convnet",
    "epochs": 30,
    "recipes": "ce, mbls, ce+ts, mbls+macal",
    "trials": 3,
    "resources": "",
    "tracking": "null",
}
MARK = "CALSWEEP_FAULTS"
PATIENCE = 900.0
TIMES = ("seconds", "memory")
"""Metrics whose names hold these differ from run to run."""


@dataclass(frozen=True)
class Done:
    """What a command said and how it ended."""

    code: int
    seconds: float
    output: str
    errors: str

    def line(self, beginning: str) -> str:
        lines = [line for line in (self.output + self.errors).splitlines() if beginning in line]
        assert len(lines) == 1, (beginning, self)
        return lines[0]


class Command:
    """A ``calsweep`` command in a process group of its own, as a terminal starts one."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.mark = secrets.token_hex(8)
        self._logs = [folder / f"{self.mark}.{stream}" for stream in ("out", "err")]
        self.started = time.monotonic()
        with self._logs[0].open("w") as out, self._logs[1].open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *arguments],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", MARK: self.mark, **environment},
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def errors(self) -> str:
        return self._logs[1].read_text()

    def running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def wait(self, timeout: float = PATIENCE) -> Done:
        code = self.process.wait(timeout)
        seconds = time.monotonic() - self.started
        return Done(code, seconds, self._logs[0].read_text(), self.errors)

    def family(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _marked(process, self.mark)]

    def left_behind(self) -> list[str]:
        lines = [" ".join(process.cmdline())[:80] for process in self.family() if alive(process)]
        return [line for line in lines if line and "orchestrator.tracking" not in line]


class Sweep:
    """A sweep file in a folder of its own."""

    def __init__(self, folder: Path, storage: Path | None = None, **changes: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.storage = storage or folder / "storage"
        values = {**USUAL, **changes}
        short = "{macal: {epochs: 4, lr: 0.1, q0: 0.1, sparsity: fixed}}"
        values["fixed"] = short if "macal" in str(values["recipes"]) else "{}"
        self.name = str(values["name"])
        self.file = folder / f"{self.name}.yaml"
        text = values.pop("text", SWEEP)
        self.file.write_text(text.format(storage=self.storage, **values))

    @property
    def directory(self) -> Path:
        return self.storage / "sweeps" / self.name

    @property
    def journal(self) -> Path:
        return self.directory / "journal.jsonl"

    @property
    def database(self) -> Path:
        return self.storage / "mlflow.db"

    def start(self, *arguments: str, **environment: str) -> Command:
        return Command(self.folder, "run", str(self.file), *arguments, **environment)

    def resume(self, *arguments: str, **environment: str) -> Command:
        place = ("--storage", str(self.storage))
        return Command(self.folder, "run", "--resume", self.name, *place, *arguments, **environment)

    def obey(self, line: str, **environment: str) -> Done:
        words = shlex.split(line[line.index("calsweep ") :])
        return Command(self.folder, *words[1:], **environment).wait()

    def table(self) -> bytes:
        return (self.directory / "table.md").read_bytes()

    def events(self, kind: str) -> list[Any]:
        if not self.journal.exists():
            return []
        return [event for event in read_events(self.journal)[0] if event.event == kind]

    def finished(self) -> list[str]:
        return [event.key for event in self.events("trial_finished")]

    def suggestions(self) -> list[str]:
        names = ("study", "role", "number", "parameters")
        started = self.events("trial_started")
        return sorted({json.dumps([getattr(event, name) for name in names]) for event in started})

    def wait_for(self, command: Command, begun: Callable[[], bool]) -> bool:
        """Wait until something has come about; return True if the command still runs."""
        deadline = time.monotonic() + PATIENCE
        while command.running() and not begun():
            assert time.monotonic() < deadline, command.errors
            time.sleep(0.05)
        return command.running()

    def wait_for_trials(self, command: Command, started: int = 1) -> bool:
        return self.wait_for(command, lambda: len(self.events("trial_started")) >= started)

    def faults(self, calm: "Sweep") -> list[str]:
        """Return what differs from a sweep that nothing disturbed."""
        keys = Counter(self.finished())
        found = {
            "the table differs": self.table() != calm.table(),
            "other configurations were suggested": self.suggestions() != calm.suggestions(),
            "a trial ended twice": max(keys.values()) > 1,
            "the budget was not spent exactly": len(keys) != len(calm.finished()),
        }
        return [what for what, wrong in found.items() if wrong]


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _marked(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get(MARK) == mark
    return False


def gone(command: Command, timeout: float = 90.0) -> float:
    """Wait until nothing that stems from a command runs; return for how long."""
    started = time.monotonic()
    while any(alive(process) for process in command.family()):
        assert time.monotonic() - started < timeout, command.left_behind()
        time.sleep(0.1)
    return time.monotonic() - started


@contextlib.contextmanager
def _opened(database: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as found:
        yield found


def tracked(database: Path) -> list[Any]:
    """Return every run of a store as study, role, number, status, parameters and metrics.

    Times are left out: with them no two runs are equal.
    """
    with _opened(database) as store:
        runs = store.execute("SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'")
        return sorted((_run(store, run_id, status) for run_id, status in runs.fetchall()), key=str)


def _run(store: sqlite3.Connection, run_id: str, status: str) -> Any:
    def rows(columns: str, table: str) -> list[Any]:
        query = f"SELECT {columns} FROM {table} WHERE run_uuid = ?"
        return sorted(store.execute(query, (run_id,)).fetchall())

    tags = dict(rows("key, value", "tags"))
    name = [tags.get(f"calsweep.{part}", "") for part in ("study", "role", "number", "chosen")]
    kept = [row for row in rows("key, step, value", "metrics") if not _is_time(row[0])]
    return [*name[:3], status, rows("key, value", "params"), kept]


def _is_time(name: str) -> bool:
    return any(part in name for part in TIMES)


def statuses(database: Path) -> dict[str, int]:
    return dict(Counter(run[3] for run in tracked(database)))
