"""A process of this machine that computes jobs for the one which started it."""

import os
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from trainables.worker import Bench, Worker


def serve(connection: Connection, environment: Mapping[str, str], bench: Mapping[str, Any]) -> None:
    """Compute the jobs that come, and report, until nobody listens; see ``Bench``.

    The environment takes the place of what this process was forked with.
    """
    os.environ.clear()
    os.environ.update(environment)
    with suppress(EOFError, ConnectionError):
        worker = Worker(Bench(**bench))
        while True:
            worker.open(connection.recv())
            ended = False
            while not ended:
                report = worker.step()
                connection.send(report)
                ended = report.ended
