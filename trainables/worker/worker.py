import contextlib
import io
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import torch

from trainables.common.devices import trial_device
from trainables.common.errors import AlteredCodeError, StorageError
from trainables.common.faults import is_machines_fault, reason_of, where_raised
from trainables.common.pulse import beat
from trainables.common.words import duration
from trainables.jobs import (
    Cost,
    EpochMetrics,
    Fault,
    FaultKind,
    FitWork,
    Job,
    Report,
    StageWork,
    Status,
    TestWork,
)
from trainables.worker._computations import (
    Bench,
    Computation,
    FitComputation,
    StageComputation,
    TestComputation,
)

HOST = os.uname().nodename
KINDS: dict[type, Callable[..., Computation]] = {
    StageWork: StageComputation,
    TestWork: TestComputation,
    FitWork: FitComputation,
}


class Worker:
    """Computes one job at a time in steps, and reports after every step.

    A job that raises an error has failed. If the machine or changed code is the cause (see
    ``Report.broken``), the executor ends this process, and another one may resume the job.

    Args:
        node, gpu: Names of the node and the GPU in the executor; ``gpu`` is empty for none or
            several.
    """

    def __init__(self, bench: Bench, node: str = "", gpu: str = "") -> None:
        self._bench, self._node, self._gpu = bench, node, gpu
        self._computation: Computation | None = None
        self._without_gpu = False

    def open(self, job: Job) -> None:
        """Close the previous job and begin this one."""
        self.close()
        self._opened = self._bench.clock()
        if job.gpus and not torch.cuda.is_available() and not self._without_gpu:
            self._without_gpu = True
            self._bench.notices.append(
                f"{HOST}: torch sees no GPU, so trials that request one compute on the CPU"
            )
        torch.set_num_threads(max(1, int(job.cpus) // job.processes))
        logs = self._bench.logs
        self._log = TrialLog(logs and logs / f"{job.key}.log", self._bench.notices.append)
        self._log.line(f"{job.group}|{job.number}, attempt {job.attempt + 1} on {HOST}")
        self._computation = self._begin(job)
        self._gpus, self._reported = job.gpus, 0
        self._refusal: Exception | None = None
        try:
            self._bench.require_code()
            self._bench.use(trial_device(job.gpus, job.deterministic), job.processes)
        except Exception as error:  # noqa: BLE001 - ``step`` raises and reports it
            self._refusal = error
            self._bench.use(torch.device("cpu"))

    def _begin(self, job: Job) -> Computation:
        return KINDS[type(job.work)](self._bench, job, job.work)

    def step(self) -> Report:
        """Compute for a while and report; printed text goes to the job's log."""
        beat()
        with self._log.capturing():
            report = self._step()
            self._log.epochs(report.history)
            if report.status != Status.WAITING:
                for text in report.notices:
                    self._log.line(text)
            if report.ended:
                self._log.line(self._ending(report))
        if report.ended and self._log.path is not None:
            self._bench.store.share(self._log.path)
        return report

    def _ending(self, report: Report) -> str:
        """Return the log's last line: the status, and the duration or that the outcome is stored.

        The duration includes earlier attempts if the job resumed from their checkpoint.
        """
        if report.cost.reused:
            return f"{report.status}: its outcome was stored already"
        seconds = report.cost.seconds or self._bench.clock() - self._opened
        return f"{report.status} after {duration(seconds)}"

    def _step(self) -> Report:
        computation = self._computation
        assert computation is not None
        fault: Fault | None = None
        try:
            if self._refusal is not None:
                raise self._refusal
            status = computation.advance()
            if status in (Status.RUNNING, Status.WAITING):
                computation.rest()
        except Exception as caught:  # noqa: BLE001 - the job's boundary: the reason is reported
            fault, status = _fault_of(caught), Status.FAILED
            self._log.raised(caught)
            self._explain_retry(computation, fault)
        if status in (Status.FINISHED, Status.FAILED):
            computation.ended(fault)
        report = self._report(computation, status, fault)
        if report.ended:
            # If the device has failed, closing may fail as well.
            with contextlib.suppress(RuntimeError):
                self.close()
        return report

    def _explain_retry(self, computation: Computation, fault: Fault) -> None:
        """Add a message if the machine failed or the job's share of a GPU had too little memory."""
        if fault.kind == FaultKind.MACHINE:
            self._bench.notices.append(
                f"{computation.what} failed because of machine {HOST}: {fault.reason}"
            )
        if fault.kind == FaultKind.MEMORY and 0 < self._gpus < 1:
            self._bench.notices.append(
                f"{computation.what} ran out of memory on {self._gpus:g} of a GPU; it runs once "
                "more, on a whole GPU"
            )

    def _report(self, computation: Computation, status: Status, fault: Fault | None) -> Report:
        history = tuple(computation.history[self._reported :])
        self._reported = len(computation.history)
        notices = tuple(self._bench.notices)
        self._bench.notices.clear()
        outcome = computation.outcome() if status == Status.FINISHED else {}
        # A reused outcome cost nothing here.
        figures = {} if computation.reused else self._bench.meter.report()
        return Report(
            status=status,
            metrics=computation.metrics,
            epoch=0 if computation.reused else self._reported,
            history=history,
            fault=fault,
            cost=Cost(computation.seconds, **figures, reused=computation.reused),
            host=HOST,
            node=self._node,
            gpu=self._gpu,
            notices=notices,
            **outcome,
        )

    def close(self) -> None:
        """Close the job and release its lock and the device's memory."""
        if self._computation is None:
            return
        self._computation.close()
        self._computation = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class TrialLog(io.TextIOBase):
    """A log file, or none if ``path`` is None; stops after the first error, which it reports."""

    def __init__(self, path: Path | None, notice: Callable[[str], None]) -> None:
        self.path, self._notice, self._waiting = path, notice, ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Buffer a text until the next flush."""
        self._waiting += text
        return len(text)

    def flush(self) -> None:
        """Append the buffered text to the file."""
        text, self._waiting = self._waiting, ""
        if self.path is None or not text:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
        except OSError as error:
            self._notice(f"log {self.path} cannot be written: {error.strerror}")
            self.path = None

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Capture this process's standard output and error in the block; flush at its end."""
        if self.path is None:
            yield
            return
        try:
            with redirect_stdout(self), redirect_stderr(self):
                yield
        finally:
            self.flush()

    def line(self, text: str) -> None:
        """Write a line with the time."""
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def epochs(self, history: Iterable[EpochMetrics]) -> None:
        """Write a line for each epoch."""
        for epoch in history:
            figures = " ".join(f"{name}={value:.5g}" for name, value in epoch.metrics.items())
            self.line(f"epoch {epoch.step}: {figures}")

    def raised(self, error: Exception) -> None:
        """Write the traceback of the error that ended the trial."""
        self.write("".join(traceback.format_exception(error)))


def _fault_of(error: Exception) -> Fault:
    if isinstance(error, StorageError | AlteredCodeError):
        kind = FaultKind.STORAGE if isinstance(error, StorageError) else FaultKind.CODE
        return Fault(kind, str(error), where_raised(error))
    kind = FaultKind.MACHINE if is_machines_fault(error) else FaultKind.CONFIGURATION
    if isinstance(error, torch.OutOfMemoryError):
        kind = FaultKind.MEMORY
    return Fault(kind, reason_of(error), where_raised(error))
