"""A process that computes jobs for the process that started it."""

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
    """Compute jobs from the connection and send reports until it is closed; see ``Bench``.

    ``environment`` replaces this process's environment. If ``beat_seconds`` is given, the process
    sends None after every interval of this length in which it made progress.
    """
    os.environ.clear()
    os.environ.update(environment)
    guard = threading.Lock()

    def send(report: Report | None) -> None:
        with guard:
            connection.send(report)

    def send_progress() -> None:
        with suppress(ConnectionError):
            send(None)

    if beat_seconds is not None:
        send_progress()
        tell_progress(send_progress, beat_seconds)
    with suppress(EOFError, ConnectionError):
        worker = Worker(Bench(**bench))
        while True:
            worker.open(connection.recv())
            ended = False
            while not ended:
                report = worker.step()
                send(report)
                ended = report.ended
