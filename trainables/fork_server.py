"""The server that forks this machine's worker processes (without Ray)."""

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
    """Start the server unless it runs; it imports PyTorch and waits for requests to fork."""
    require_socket_room(tempfile.gettempdir(), "pymp-12345678/listener-12345678", "TMPDIR")
    CONTEXT.set_forkserver_preload(PRELOADED)
    with unseen():
        forkserver.ensure_running()
    atexit.register(_end)


def _end() -> None:
    """Kill the server: while it starts, it would keep this program's output open for seconds."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def unseen() -> Iterator[None]:
    """Make processes that start in the block ignore Ctrl-C and not run the program's main file.

    This process handles Ctrl-C and ends those processes, which need nothing from the main file.
    """
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
