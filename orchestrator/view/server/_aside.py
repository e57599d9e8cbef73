"""Computes with PyTorch in another process, so that the server stays small."""

import pickle
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

from trainables.common.errors import InputError

T = TypeVar("T")
IDLE_SECONDS = 60.0  # Not shorter: importing PyTorch again takes seconds.
# A separate program, because multiprocessing would import the server's main module again.
PROGRAM = (
    f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer_calls; answer_calls()"
)


class Aside:
    """Calls functions in another process, which ends after ``IDLE_SECONDS`` without a call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the other process, or here if PyTorch is already imported here."""
        if "torch" in sys.modules:
            return function(*arguments)
        with self._lock:
            for _ in range(2):  # An idle process may end during the call.
                try:
                    succeeded, result = self._answer((function, arguments))
                except (EOFError, OSError, pickle.UnpicklingError):
                    self._process = None
                    continue
                if not succeeded:
                    raise result
                return result
        raise InputError("the process that reads predictions was killed; is the memory full?")

    def _answer(self, call: tuple[Any, ...]) -> tuple[bool, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            weakref.finalize(self, self._process.kill)  # Also at the exit of the server.
        assert self._process.stdin
        assert self._process.stdout
        pickle.dump(call, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)  # noqa: S301 (Our own process wrote it.)


def answer_calls() -> None:
    """Answer the calls of ``Aside`` until the server ends or is silent for ``IDLE_SECONDS``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The server kills this process when it ends.
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while select.select([calls], [], [], IDLE_SECONDS)[0]:
        try:
            function, arguments = pickle.load(calls)  # noqa: S301 (The server wrote it.)
        except EOFError:
            return
        try:
            answer = True, function(*arguments)
        except Exception as error:  # noqa: BLE001 (The caller raises it.)
            answer = False, error
        with suppress(BrokenPipeError):  # The server has ended meanwhile.
            pickle.dump(answer, answers)
            answers.flush()
