"""A process of this machine that computes jobs for the one which started it."""

import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from trainables.worker import Bench, Worker


def main() -> None:
    """Compute the jobs that come, after what ``Bench`` takes, and report until nobody listens."""
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, ConnectionError):
        worker = Worker(Bench(**connection.recv()))
        while True:
            worker.open(connection.recv())
            ended = False
            while not ended:
                report = worker.step()
                connection.send(report)
                ended = report.ended


if __name__ == "__main__":
    main()
