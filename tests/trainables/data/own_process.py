"""Runs a script in a process of its own, without the seconds that importing torch takes."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from multiprocessing import get_context
from multiprocessing.connection import Connection

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["trainables.data"])


def _run(script: str, arguments: tuple[str, ...], told: Connection) -> None:
    sys.argv = ["-c", *arguments]
    with redirect_stdout(io.StringIO()) as out:
        exec(script, {"__name__": "__main__"})
    told.send(out.getvalue())


def run_script(script: str, *arguments: str) -> str:
    """Return what a script prints; the process is forked off one that has sealed nothing."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_run, args=(script, arguments, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()
        assert process.exitcode == 0
