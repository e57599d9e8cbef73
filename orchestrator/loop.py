"""The loop of a sweep: take the next job, run it, write down its report."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from orchestrator.storage.events import Epoch, Event, TrialPlaced
from orchestrator.storage.machines import Machines
from trainables.jobs import Job, Report, charged, next_attempt

ANSWER_SECONDS = 0.5  # For so long known outcomes may hold up the reports of what runs.
Pause = Enum("Pause", ["WAIT", "DONE", "HELD"])  # For jobs to end; for good; by a person.


class Source(Protocol):
    """Gives out jobs, which take ``sizes`` of CPUs and GPUs, and hears how each ended, once."""

    sizes: Sequence[tuple[float, float]]

    def next(self) -> Job | Pause:
        """Return a job that can run now, or why there is none."""

    def ended(self, job: Job, report: Report) -> None:
        """Take in the last report on a job."""


@dataclass
class Loop:
    """Hands jobs to an executor, and ``write``s down and ``say``s what their reports hold."""

    source: Source
    write: Callable[[Event], None]
    most_failures: int
    say: Callable[[str], None] = lambda text: None
    answer: Callable[[Job], Report | None] = lambda job: None  # Reports that are known already.
    changed: Callable[[], None] = lambda: None
    machines: Machines = field(default_factory=Machines)
    _running: dict[str, int] = field(default_factory=dict)  # Attempts, by key.
    _again: list[Job] = field(default_factory=list)
    _failed: bool = False  # Whether the last that ended was failed by a machine, on one GPU.
    _placed: set[tuple[str, int]] = field(default_factory=set)  # Attempts that workers reported.

    def next(self) -> Job | Pause:
        """Return the next job to compute; one whose outcome is known ends here."""
        started = time.monotonic()
        while isinstance(job := self._given_out(), Job):
            self._running[job.key], self._failed = job.attempt, False
            if (known := self.answer(job)) is None:
                return replace(job, avoided=job.avoided | self.machines.left_out())
            self.take(job, known)
            if time.monotonic() - started > ANSWER_SECONDS and self._running:
                return Pause.WAIT
        assert self._running or job is not Pause.WAIT, "the sweep waits for a job nobody computes"
        return Pause.WAIT if self._running else job

    def _given_out(self) -> Job | Pause:
        """Return a job: after a failure on a GPU another one first, in case this GPU is bad."""
        job = Pause.WAIT if self._again and not self._failed else self.source.next()
        return self._again.pop() if self._again and isinstance(job, Pause) else job

    def take(self, job: Job, report: Report) -> None:
        """Take in a report; one that comes twice, or of an attempt given up, adds nothing."""
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
            again = next_attempt(job, report, self.most_failures)
            self._again.append(again) if again else self.source.ended(job, report)
            self._failed = again is not None and bool(report.gpu)
            self.machines.heard(job, report, final=again is None)
        self.changed()
