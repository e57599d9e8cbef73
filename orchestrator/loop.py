"""The loop of a sweep: take the next job, run it, record its report."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from orchestrator.storage.events import Epoch, Event, TrialPlaced
from orchestrator.storage.machines import Machines
from trainables.jobs import Job, Report, charged, next_attempt

ANSWER_SECONDS = 0.5  # How long stored results may delay the reports of running jobs.
# Reasons for returning no job: wait for a running job, the sweep is done, or the user paused it.
Pause = Enum("Pause", ["WAIT", "DONE", "HELD"])


class Source(Protocol):
    """Provides jobs and receives the last report on each job.

    Attributes:
        sizes: (CPUs, GPUs) that one job needs, for each kind of job.
    """

    sizes: Sequence[tuple[float, float]]

    def next(self) -> Job | Pause:
        """Return a job that can run now, or why there is none."""

    def ended(self, job: Job, report: Report) -> None:
        """Receive the last report on a job."""


@dataclass
class Loop:
    """Passes jobs to an executor; writes their reports to the journal, and notices to the user.

    Attributes:
        most_failures: How often a job is restarted after a failure of its machine.
        answer: Returns the report on a job whose result is stored already, else None.
        changed: Called after every recorded report.
    """

    source: Source
    write: Callable[[Event], None]
    most_failures: int
    say: Callable[[str], None] = lambda text: None
    answer: Callable[[Job], Report | None] = lambda job: None
    changed: Callable[[], None] = lambda: None
    machines: Machines = field(default_factory=Machines)
    _running: dict[str, int] = field(default_factory=dict)  # Attempts, by key.
    _retries: list[Job] = field(default_factory=list)
    _failed: bool = False  # Whether the last attempt failed on a GPU and will be retried.
    _placed: set[tuple[str, int]] = field(default_factory=set)  # Attempts that workers reported.

    def next(self) -> Job | Pause:
        """Return the next job to compute, or why there is none.

        A job whose result is stored already ends here, without computation.
        """
        started = time.monotonic()
        while isinstance(job := self._next_job(), Job):
            self._running[job.key], self._failed = job.attempt, False
            if (known := self.answer(job)) is None:
                return replace(job, avoided=job.avoided | self.machines.left_out())
            self.take(job, known)
            if time.monotonic() - started > ANSWER_SECONDS and self._running:
                return Pause.WAIT
        assert self._running or job is not Pause.WAIT, "the sweep waits for a job nobody computes"
        return Pause.WAIT if self._running else job

    def _next_job(self) -> Job | Pause:
        """Return a retry before a new job, except after a failure on a GPU, which may be broken."""
        job = Pause.WAIT if self._retries and not self._failed else self.source.next()
        return self._retries.pop() if self._retries and isinstance(job, Pause) else job

    def take(self, job: Job, report: Report) -> None:
        """Record a report; ignore it if its attempt has ended already or was abandoned."""
        if self._running.get(job.key) != job.attempt:
            return
        for text in report.notices:
            self.say(text)
        if report.host and not report.ended and (job.key, job.attempt) not in self._placed:
            self._placed.add((job.key, job.attempt))
            self.write(TrialPlaced(key=job.key, host=report.host))
        for epoch in report.history:
            self.write(Epoch(key=job.key, step=epoch.step, metrics=epoch.metrics))
        if report.ended:
            del self._running[job.key]
            report = charged(job, report)
            retry = next_attempt(job, report, self.most_failures)
            self._retries.append(retry) if retry else self.source.ended(job, report)
            self._failed = retry is not None and bool(report.gpu)
            self.machines.heard(job, report, final=retry is None)
        self.changed()
