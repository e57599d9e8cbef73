"""The server that worker processes of this machine are forked from, without Ray."""

import atexit
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, get_context
from types import ModuleType

from trainables.common.paths import require_socket_room

CONTEXT = get_context("forkserver")
PRELOADED = ["trainables.preloaded"]


def start_fork_server() -> None:
    """Start the server, if it does not run: it imports PyTorch and does nothing else."""
    require_socket_room(tempfile.gettempdir(), "pymp-12345678/listener-12345678", "TMPDIR")
    CONTEXT.set_forkserver_preload(PRELOADED)
    with unseen():
        forkserver.ensure_running()
    atexit.register(_end)


def _end() -> None:
    """Kill the server: what it still imports would hold this program's output open for seconds."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def unseen() -> Iterator[None]:
    """Start processes within the block that a terminal and the program's own file do not reach.

    Ctrl-C is for this process, which ends them. They would run the program's file once more, for
    what it defines: nothing of it is theirs.
    """
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
