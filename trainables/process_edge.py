"""A process of this machine that computes jobs for the one which started it."""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from trainables.common.pulse import tell_progress
from trainables.jobs import Report
from trainables.worker import Bench, Worker


def serve(
    connection: Connection,
    environment: Mapping[str, str],
    bench: Mapping[str, Any],
    beat_seconds: float | None = None,
) -> None:
    """Compute the jobs that come, and report, until nobody listens; see ``Bench``.

    The environment takes the place of what this process was forked with. Progress is told by None,
    every ``beat_seconds`` unless that is None.
    """
    os.environ.clear()
    os.environ.update(environment)
    guard = threading.Lock()

    def send(report: Report | None) -> None:
        with guard:
            connection.send(report)

    def tell() -> None:
        with suppress(ConnectionError):
            send(None)

    if beat_seconds is not None:
        tell()
        tell_progress(tell, beat_seconds)
    with suppress(EOFError, ConnectionError):
        worker = Worker(Bench(**bench))
        while True:
            worker.open(connection.recv())
            ended = False
            while not ended:
                report = worker.step()
                send(report)
                ended = report.ended
