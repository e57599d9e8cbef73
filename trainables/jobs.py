"""Jobs, the reports of workers on them, and the rule for retries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from trainables.common.errors import StorageError
from trainables.common.stages import ArtifactRef
from trainables.stages import StageRequest


class Status(StrEnum):
    """The status of a job."""

    RUNNING = "running"
    WAITING = "waiting"
    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"


class FaultKind(StrEnum):
    """The cause of a failure.

    A fault of the configuration recurs on every machine, a fault of the machine may not. A job that
    ran out of GPU memory may fit if no other job shares the GPU. A process whose code has changed
    computes nothing. All jobs end if the storage cannot be written.
    """

    CONFIGURATION = "configuration"
    MACHINE = "machine"
    MEMORY = "memory"
    CODE = "code"
    STORAGE = "storage"


# A calibrator and its parameters; None for no calibrator.
Part: TypeAlias = tuple[str, Mapping[str, Any]] | None
PROCESS_ENDED = "the trial's process ended more often than resources.max_failures allows"


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """A stage to compute from training and validation data."""

    request: StageRequest
    score: str = "val_nll"  # A scheduler compares the jobs of a group by this metric.


@dataclass(frozen=True, kw_only=True)
class TestWork:
    """A chosen configuration to measure on test data."""

    __test__ = False

    artifact: ArtifactRef  # The outcome to measure.
    data: str  # The folder of the prepared data.
    default: ArtifactRef | None = None  # The published default's outcome, measured as well.
    suites: Mapping[str, str] = field(default_factory=dict)  # Folders of suites, by label.
    folder: str = ""  # Folder for the reliability diagram and configuration; empty to write none.
    title: str = ""  # The diagram's title.
    configuration: Mapping[str, Any] = field(default_factory=dict)  # For ``configuration.yaml``.


@dataclass(frozen=True, kw_only=True)
class FitWork:
    """Calibrators to fit on the validation rows of logits and to measure on the test rows."""

    data: str  # The folder of the prepared logits.
    calibrators: Mapping[str, Part]  # By recipe.
    metrics: tuple[str, ...]  # Metrics to report, by their names in ``calibration_report``.


@dataclass(frozen=True)
class Cost:
    """The cost of a job so far."""

    seconds: float = 0.0  # All steps, including those before an interruption.
    epoch_seconds: float | None = None  # The mean; None before the first epoch.
    peak_memory: float | None = None  # Bytes; None before the first epoch.
    reused: bool = False  # Whether the outcome was already stored.


@dataclass(frozen=True, kw_only=True)
class Job:
    """A computation for a worker.

    A resumed sweep uses the same keys. For ``deterministic`` and ``graph`` see ``trial_device``
    and ``Trainer``.
    """

    key: str
    group: str  # The study of the job; schedulers compare jobs of one group.
    number: int  # Within the group.
    work: StageWork | TestWork | FitWork
    cpus: float = 1  # Number of threads.
    gpus: float = 0.0  # Number of GPUs; a fraction also limits the memory, 0 means the CPU.
    processes: int = 1  # Number of processes that train its network together.
    deterministic: bool = False
    graph: bool = False
    epochs: int = 0  # Number of all epochs if a scheduler may stop the job earlier; else 0.
    attempt: int = 0  # Number of earlier attempts.
    failures: int = 0  # Number of attempts that failed because of a machine or changed code.
    # Nodes on which these attempts failed, and nodes that the loop excludes.
    avoided: frozenset[str] = frozenset()
    cost: Cost = Cost()  # The highest cost that an earlier attempt reported.

    @property
    def alone(self) -> bool:
        """Return True if the job needs a whole GPU because a fraction had too little memory."""
        return self.attempt > self.failures


@dataclass(frozen=True)
class Fault:
    """Why a job failed."""

    kind: FaultKind
    reason: str  # One line.
    traceback: str = ""  # The innermost frames, if any were raised.


@dataclass(frozen=True)
class EpochMetrics:
    """The metrics after epoch ``step``, which counts from 1."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Measured:
    """Further results of a configuration that was measured on test data."""

    default: str | None  # Key of the published default's predictions; None if not measured.
    seconds: float | None  # Cost of the chain of stages; None if unknown.
    computed: Mapping[str, Mapping[str, Any]]  # ``computed_on`` of each stage of the chain.
    files: Mapping[str, str] = field(default_factory=dict)  # Paths of written files, by name.


@dataclass(frozen=True)
class Fit:
    """One fitted calibrator and its test metrics."""

    metrics: Mapping[str, float]  # Test metrics; empty if it could not be fitted.
    seconds: float = 0.0  # CPU time of the fit alone.
    reason: str = ""  # Why metrics are missing.


@dataclass(frozen=True, kw_only=True)
class Report:
    """A worker's report on a job: several while the job runs, and one when it ends."""

    status: Status
    metrics: Mapping[str, float] = field(default_factory=dict)  # The latest ones.
    epoch: int = 0  # Number of computed epochs; 0 for an outcome that was already stored.
    history: Sequence[EpochMetrics] = ()  # The epochs that this attempt has not reported yet.
    artifact: str = ""  # Key of the stored outcome, once it has finished.
    fault: Fault | None = None
    cost: Cost = Cost()
    host: str = ""  # The machine's name.
    node: str = ""  # The executor's name of the machine.
    gpu: str = ""  # The executor's name of the GPU; empty if it uses none or several.
    notices: tuple[str, ...] = ()  # Messages for the user.
    measured: Measured | None = None  # Only of a finished ``TestWork``.
    fits: Mapping[str, Fit] = field(default_factory=dict)  # Only of a finished ``FitWork``.

    @property
    def ended(self) -> bool:
        """Return True if this is the attempt's last report."""
        return self.status in (Status.FINISHED, Status.PRUNED, Status.FAILED)

    @property
    def broken(self) -> bool:
        """Return True if the worker's process has to end."""
        return self.fault is not None and self.fault.kind in (FaultKind.MACHINE, FaultKind.CODE)


def lost(last: Report | None = None) -> Report:
    """Make the final report of a job whose process ended without sending one.

    The cost is that of ``last``, the latest report received.
    """
    fault = Fault(FaultKind.MACHINE, PROCESS_ENDED)
    return Report(status=Status.FAILED, fault=fault, cost=last.cost if last else Cost())


def hung(job: Job, last: Report, seconds: float) -> Report:
    """Make the final report of a job that was killed because it made no progress."""
    where = f" on {last.host}" if last.host else ""
    reason = f"no progress for {seconds:.0f} s{where}, so its process was killed"
    return replace(
        lost(last),
        fault=Fault(FaultKind.MACHINE, f"{reason} (resources.hang_seconds)"),
        host=last.host,
        node=last.node,
        gpu=last.gpu,
        notices=(f"{job.group}|{job.number}: {reason}",),
    )


def charged(job: Job, report: Report) -> Report:
    """Return a final report; its cost becomes that of an earlier attempt if that was higher.

    The cost does not change if the job did not fail, or failed because of its configuration.
    """
    own = report.fault is None or report.fault.kind == FaultKind.CONFIGURATION
    if own or report.cost.seconds >= job.cost.seconds:
        return report
    return replace(report, cost=job.cost)


def next_attempt(job: Job, report: Report, most_failures: int) -> Job | None:
    """Return the next attempt of a failed job, or None if there is none.

    A job that failed because of a machine runs again elsewhere until ``failures`` reaches
    ``most_failures``. A job that failed because code had changed always runs again elsewhere. A job
    that used up its share of a GPU's memory runs once more, on a whole GPU.

    Raises:
        StorageError: If the storage could not be written.
    """
    kind = report.fault.kind if report.fault else None
    if report.fault is not None and kind == FaultKind.STORAGE:
        raise StorageError(report.fault.reason)
    if kind == FaultKind.MEMORY and 0 < job.gpus < 1:
        return replace(job, gpus=1.0, attempt=job.attempt + 1, cost=report.cost)
    if kind == FaultKind.CODE or (kind == FaultKind.MACHINE and job.failures < most_failures):
        avoided = job.avoided | ({report.node} if report.node else set())
        again = replace(job, attempt=job.attempt + 1, avoided=avoided, cost=report.cost)
        return replace(again, failures=job.failures + 1)
    return None
