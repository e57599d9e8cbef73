"""Computes with PyTorch in a process of its own, so that the server stays small."""

import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

from trainables.common.errors import InputError

T = TypeVar("T")
IDLE_SECONDS = 60.0  # Importing PyTorch again takes seconds.
# As a program of its own: multiprocessing would import the program that serves once more.
PROGRAM = (
    f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer_calls; answer_calls()"
)


class Aside:
    """Calls functions of modules in another process, which ends when it has been idle for long."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return or raise what a function does; here, if PyTorch is imported here anyway."""
        if "torch" in sys.modules:
            return function(*arguments)
        with self._lock:
            for _ in range(2):  # An idle process may end while it is asked.
                try:
                    good, found = self._asked((function, arguments))
                except (EOFError, OSError, pickle.UnpicklingError):
                    self._process = None
                    continue
                if not good:
                    raise found
                return found
        raise InputError("the process that reads predictions was killed; is the memory full?")

    def _asked(self, call: tuple[Any, ...]) -> tuple[bool, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._process.stdin
        assert self._process.stdout
        pickle.dump(call, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)  # noqa: S301 (Our own process wrote it.)


def answer_calls() -> None:
    """Answer the calls of ``Aside`` until it is gone, or has asked nothing for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A Ctrl-C is the server's, whose end ends this.
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
