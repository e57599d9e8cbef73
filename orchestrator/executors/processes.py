"""An executor that computes in processes of this machine, without Ray."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from orchestrator.executors._base import Executor
from orchestrator.executors._silence import Silence
from orchestrator.loop import Loop, Pause
from trainables.common.devices import VISIBLE, visible_gpus
from trainables.common.files import code_files
from trainables.common.pulse import kill_tree
from trainables.fork_server import CONTEXT, start_fork_server, unseen
from trainables.jobs import Job, Report, Status, hung, lost
from trainables.plugins import Pinned
from trainables.process_edge import serve

WAIT_SECONDS = 0.5  # Time between two requests for a job while a process is idle.
END_SECONDS = 10.0  # Wait for a killed process; one that waits for a dead disk may never end.


@dataclass
class Processes(Executor):
    """Computes several jobs at once; a process that dies or hangs is replaced.

    If jobs use GPUs, each process sees one GPU, assigned in turn. All processes are forked from a
    server that has only imported modules. The server is started once for all executors.

    Args:
        count: Maximum number of jobs at once.
        storage, checkpoint_seconds, logs, plugins: See ``Bench``.
        hang_seconds: See ``Silence``.
    """

    count: int
    storage: Path
    checkpoint_seconds: float | None = None
    logs: Path | None = None
    plugins: Sequence[Pinned] = ()
    hang_seconds: float | None = None

    def __post_init__(self) -> None:
        start_fork_server()

    def run(self, loop: Loop, sealed: bool = True) -> None:
        bench = {**vars(self), "sealed": sealed, "code": code_files()}
        count, silence = bench.pop("count"), Silence[_Process](bench.pop("hang_seconds"))
        gpus = visible_gpus() if any(gpu for _, gpu in loop.source.sizes) else []
        free: list[Mapping[str, str]] = [
            {VISIBLE: gpus[number % len(gpus)]} if gpus else {} for number in range(count)
        ]
        idle, busy = list[_Process](), dict[Any, _Process]()  # Busy ones by connection.
        try:
            while True:
                job: Job | Pause = Pause.WAIT
                while len(busy) < count and isinstance(job := loop.next(), Job):
                    if idle:
                        silence.heard(process := idle.pop())
                    else:  # Silence counts from the first sign of a new process.
                        process = _Process(bench, free.pop(), silence.beat_seconds)
                    busy[process.connection] = process
                    process.give(job)
                if job is Pause.DONE:
                    return
                for process, report in _reports(busy, silence):
                    if report.ended:
                        del busy[process.connection]
                        silence.over(process)
                        if report.broken:
                            process.end()
                            free.append(process.environment)
                        else:
                            idle.append(process)
                    loop.take(process.job, report)
        finally:
            for process in (*idle, *busy.values()):
                process.end()


def _reports(
    busy: Mapping[Any, "_Process"], silence: Silence["_Process"]
) -> Iterator[tuple["_Process", Report]]:
    """Yield new reports of processes; kill each process that hangs and yield a report for it."""
    for heard in wait(list(busy), WAIT_SECONDS):
        process = busy[heard]
        silence.heard(process)
        if (report := process.report()) is not None:
            yield process, report
    for process, seconds in silence.hung().items():
        process.kill_tree()
        yield process, hung(process.job, process.last, seconds)


class _Process:
    """A process with a worker, its connection, and its last job and report."""

    def __init__(
        self, bench: Mapping[str, Any], environment: Mapping[str, str], beat: float | None
    ) -> None:
        self.environment = environment
        self.connection, there = Pipe()
        # The environment may have changed since the server started.
        arguments = there, {**os.environ, **environment}, bench, beat
        self._process = CONTEXT.Process(target=serve, args=arguments, daemon=True)
        try:
            with unseen():
                self._process.start()
        except (EOFError, ConnectionError) as error:  # Typer treats an EOFError as Ctrl-D.
            raise MemoryError("the server that starts workers has ended") from error
        there.close()

    def give(self, job: Job) -> None:
        """Send a job to the process."""
        self.job, self.last = job, Report(status=Status.RUNNING)
        with suppress(ConnectionError):  # ``report`` handles a dead process.
            self.connection.send(job)

    def report(self) -> Report | None:
        """Return the next report; None for a sign of progress, ``lost`` if the process died."""
        try:
            report: Report | None = self.connection.recv()
        except (EOFError, ConnectionError):
            report = lost(self.last)
        self.last = report or self.last
        return report

    def kill_tree(self) -> None:
        """Kill the process, even if it is stopped, and its children."""
        assert self._process.pid is not None
        kill_tree(self._process.pid)

    def end(self) -> None:
        """Kill the process."""
        self.connection.close()
        self._process.kill()
        self._process.join(END_SECONDS)
