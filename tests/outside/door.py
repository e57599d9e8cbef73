"""Run the installed command `calsweep`, each time in a process of its own.

A start of the interpreter takes seconds, most of them imports. So a server imports
the libraries once and forks a process for every command, which can be killed like any other.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType

LIBRARIES = ("torch", "optuna", "sklearn.datasets", "mlflow.store.tracking.sqlalchemy_store")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "COLUMNS": "200",
    "PYTHONHASHSEED": "0",
}
LIMIT_SECONDS, ENDLESS = 900.0, 124  # A command that runs longer is killed and has this exit code.


@dataclass(frozen=True)
class Told:
    """The exit code of a command (minus the signal that killed it) and its output."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str


class Door:
    """A server of commands; ``fork=False`` starts the installed script for each command.

    ``code`` is a folder with another copy of the product, which is run instead. The commands have
    ``variables`` in their environment.
    """

    def __init__(
        self,
        scratch: Path,
        fork: bool = True,
        code: Path | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.scratch, self.count = scratch, 0
        self.environment = {**os.environ, **ENVIRONMENT, **variables, "HOME": str(scratch)}
        for name in ("MLFLOW_TRACKING_URI", "CALSWEEP_SHARED", "PYTHONDONTWRITEBYTECODE"):
            self.environment.pop(name, None)
        if code is not None:
            self.environment["PYTHONPATH"] = str(code)
        self.server = self._serve() if fork else None

    def _serve(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.scratch,
        )

    def start(self, argv: Sequence[str], cwd: Path) -> Running:
        """Start a command in a folder."""
        self.count += 1
        texts = [self.scratch / f"command-{self.count}.{kind}" for kind in ("out", "err")]
        if self.server:
            pid = int(self._ask("start", list(argv), str(cwd), *map(str, texts)))
            return Running(self, tuple(argv), pid, *texts)
        script = Path(sys.executable).parent / "calsweep"
        with texts[0].open("w") as out, texts[1].open("w") as err:
            process = subprocess.Popen(
                [script, *argv],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment,
                start_new_session=True,
            )
        return Running(self, tuple(argv), process.pid, *texts)

    def __call__(self, *argv: str, cwd: Path) -> Told:
        """Run a command to its end."""
        return self.start(argv, cwd).wait()

    def warm(self, *argv: str, cwd: Path) -> None:
        """Run a command in the server itself, so that later ones find its imports and caches."""
        code = self._ask("warm", list(argv), str(cwd)).strip()
        assert code == "0", f"{argv} ended with {code}"

    def ended(self, pid: int) -> int:
        """Wait for a command and return its exit code, minus the signal that killed it."""
        if self.server:
            return int(self._ask("wait", pid))
        return reaped(pid)

    def _ask(self, *words: object) -> str:
        assert self.server
        assert self.server.stdin
        assert self.server.stdout
        print(json.dumps(words), file=self.server.stdin, flush=True)
        return self.server.stdout.readline()

    def close(self) -> None:
        """End the server."""
        if self.server and self.server.stdin:
            self.server.stdin.close()
            self.server.wait()


@dataclass
class Running:
    """A command that has been started."""

    door: Door
    argv: tuple[str, ...]
    pid: int
    out: Path
    err: Path

    def wait(self) -> Told:
        """Wait until it ends."""
        code = self.door.ended(self.pid)
        return Told(self.argv, code, self.out.read_text(), self.err.read_text())

    def kill(self, kind: signal.Signals) -> Told:
        """Send a signal (SIGKILL to all its processes), and wait until it ends."""
        with contextlib.suppress(ProcessLookupError):
            if kind is signal.SIGKILL:
                os.killpg(self.pid, kind)
            else:
                os.kill(self.pid, kind)
        return self.wait()


def reaped(pid: int) -> int:
    """Wait for a child process, but not forever, and return its exit code."""
    over = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < over:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return ENDLESS


def child(argv: list[str], cwd: str, out: str, err: str) -> None:
    """Become the command, in a session of its own."""
    os.setsid()
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # It is the process's own.
    code = command(argv, cwd)
    # End as the interpreter does, but leave the memory to the system: it is faster.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def command(argv: list[str], cwd: str) -> int:
    """Run the installed script in this process; return its exit code."""
    os.chdir(cwd)
    sys.argv = ["calsweep", *argv]
    (script,) = entry_points(group="console_scripts", name="calsweep")
    try:
        code = script.load()()
    except SystemExit as end:
        code = end.code
    return code if isinstance(code, int) else 0 if code is None else 1


def requests() -> Iterator[list[object]]:
    """Yield what the tests ask for."""
    while line := sys.stdin.readline():
        yield json.loads(line)


def serve() -> None:
    """Fork a process per command until the input ends."""
    for name in LIBRARIES:
        __import__(name)
    package = __import__("calsweep")
    for name in package.__all__:
        getattr(package, name)
    for kind, *words in requests():
        if kind == "wait":
            answer(reaped(int(str(words[0]))))
            continue
        if kind == "warm":
            with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
                code = command(*words)  # type: ignore[arg-type]
            answer(code)
            continue
        gc.freeze()  # A forked process then copies less memory.
        pid = os.fork()
        if not pid:
            child(*words)  # type: ignore[arg-type]
        while os.getpgid(pid) != pid:  # Else a signal to its group could find none.
            time.sleep(0.001)
        answer(pid)


def answer(number: int) -> None:
    """Tell the tests a number."""
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
