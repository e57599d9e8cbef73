"""Runs a script in a process of its own, without the seconds that importing torch takes."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from trainables.data import PreparedData

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


SEALED = """
import sys
from trainables.data import PreparedData, TestDataSealedError, seal_test_data
data = PreparedData.open(sys.argv[1])
seal_test_data(data.directory)
for path in sys.argv[2:]:
    try:
        print(len(open(path, "rb").read()) > 0)
    except TestDataSealedError:
        print("sealed")
try:
    data.test()
except TestDataSealedError:
    print("sealed", len(data.search().train))
"""


def open_sealed(data: PreparedData, *paths: Path) -> list[str]:
    """Return what came of opening files where test data are sealed: ``True`` or ``sealed``."""
    *opened, asked = run_script(SEALED, str(data.directory), *map(str, paths)).splitlines()
    assert asked == f"sealed {data.counts['train']}"
    return opened
