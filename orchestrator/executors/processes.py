"""An executor that computes in processes of this machine, without Ray."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from orchestrator.executors._base import Executor
from orchestrator.loop import Loop, Pause
from trainables.common.code import code_files
from trainables.common.devices import VISIBLE, visible_gpus
from trainables.fork_server import CONTEXT, start_fork_server, unseen
from trainables.jobs import Job, Report, Status, lost
from trainables.plugins import Pinned
from trainables.process_edge import serve

WAIT_SECONDS = 0.5  # Between two questions for a job while some process has none.


@dataclass
class Processes(Executor):
    """Computes several jobs at once; a process that dies is replaced.

    Where jobs take GPUs, each process sees one of them, in turn. All are forked off a server that
    has imported PyTorch and done nothing else; it starts at once, and stays for the next executor.

    Args:
        count: Most processes.
        storage: Root of the artifact store.
        checkpoint_seconds, logs, plugins: See ``Bench``.
    """

    count: int
    storage: Path
    checkpoint_seconds: float | None = None
    logs: Path | None = None
    plugins: Sequence[Pinned] = ()

    def __post_init__(self) -> None:
        start_fork_server()

    def run(self, loop: Loop, sealed: bool = True) -> None:
        bench = {**vars(self), "sealed": sealed, "code": code_files()}
        count = bench.pop("count")
        gpus = visible_gpus() if any(gpu for _, gpu in loop.source.sizes) else []
        free: list[Mapping[str, str]] = [
            {VISIBLE: gpus[number % len(gpus)]} if gpus else {} for number in range(count)
        ]
        idle, busy = list[_Process](), dict[Any, _Process]()  # Busy ones by connection.
        try:
            while True:
                job: Job | Pause = Pause.WAIT
                while len(busy) < count and isinstance(job := loop.next(), Job):
                    process = idle.pop() if idle else _Process(bench, free.pop())
                    busy[process.connection] = process
                    process.give(job)
                if job is Pause.DONE:
                    return
                for heard in wait(list(busy), WAIT_SECONDS):
                    process = busy[heard]
                    report = process.report()
                    if report.ended:
                        del busy[heard]
                        if report.broken:
                            process.end()
                            free.append(process.environment)
                        else:
                            idle.append(process)
                    loop.take(process.job, report)
        finally:
            for process in (*idle, *busy.values()):
                process.end()


class _Process:
    """A process with a worker.

    Attributes:
        environment: What its own differs in.
        connection: Where its reports come from.
        job: The last one that it was given.
    """

    def __init__(self, bench: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.connection, there = Pipe()
        arguments = there, {**os.environ, **environment}, bench  # The server's may be older.
        self._process = CONTEXT.Process(target=serve, args=arguments, daemon=True)
        try:
            with unseen():
                self._process.start()
        except (EOFError, ConnectionError) as error:  # Typer would take the first for Ctrl-D.
            raise MemoryError("the server that starts workers has ended") from error
        there.close()

    def give(self, job: Job) -> None:
        """Send it a job to compute."""
        self.job, self._last = job, Report(status=Status.RUNNING)
        with suppress(ConnectionError):  # Of a process that is gone no report comes either.
            self.connection.send(job)

    def report(self) -> Report:
        """Return its next report, or that its job is lost with it."""
        try:
            self._last = self.connection.recv()
        except (EOFError, ConnectionError):
            self._last = lost(self._last)
        return self._last

    def end(self) -> None:
        """End the process and whatever it computes."""
        self.connection.close()
        self._process.kill()
        self._process.join()
