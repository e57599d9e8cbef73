"""Runs a script in a process of its own, without the seconds that importing torch takes."""

import io
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from trainables.data import PreparedData

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["trainables.worker"])


def _run(
    script: str, arguments: tuple[str, ...], environment: Mapping[str, str], told: Connection
) -> None:
    sys.argv = ["-c", *arguments]
    os.environ.update(environment)
    with redirect_stdout(io.StringIO()) as out:
        exec(script, {"__name__": "__main__"})
    told.send(out.getvalue())


class OwnProcess:
    """A script in a process that is forked off one which has sealed nothing.

    Args:
        script: The script's text.
        arguments: Of the script.
        environment: What is added to the variables that it inherits.
    """

    def __init__(
        self, script: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._receiver, sender = CONTEXT.Pipe(duplex=False)
        given = (script, arguments, dict(environment or {}), sender)
        self._process = CONTEXT.Process(target=_run, args=given)
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid
        sender.close()

    def code(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def output(self) -> str:
        """Wait for its end; return what it printed."""
        try:
            return str(self._receiver.recv())
        finally:
            assert self.code() == 0


def run_script(script: str, *arguments: str) -> str:
    return OwnProcess(script, *arguments).output()


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
    *opened, asked = run_script(SEALED, str(data.directory), *map(str, paths)).splitlines()
    assert asked == f"sealed {data.counts['train']}"
    return opened
