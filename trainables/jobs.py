"""What passes between a driver and its workers: a job, the reports on it, and the retry rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from trainables.common.errors import StorageError
from trainables.common.stages import ArtifactRef
from trainables.stages import StageRequest


class Status(StrEnum):
    """How a job stands."""

    RUNNING = "running"
    WAITING = "waiting"
    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"


class FaultKind(StrEnum):
    """Whose fault a failure is.

    A configuration's comes again wherever the job runs; a machine's need not. The memory of a GPU
    may suffice where no other job shares it. A process of altered code computes nothing, and a
    storage that cannot be written ends every job.
    """

    CONFIGURATION = "configuration"
    MACHINE = "machine"
    MEMORY = "memory"
    CODE = "code"
    STORAGE = "storage"


# A calibrator and its parameters; None for none.
Part: TypeAlias = tuple[str, Mapping[str, Any]] | None
PROCESS_ENDED = "the trial's process ended more often than resources.max_failures allows"


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """A stage to compute from training and validation data."""

    request: StageRequest
    together: tuple[StageRequest, ...] = ()  # They come next; one pass may compute all of them.
    score: str = "val_nll"  # The metric by which a scheduler compares jobs of a group.


@dataclass(frozen=True, kw_only=True)
class TestWork:
    """A chosen configuration to measure on test data."""

    __test__ = False

    artifact: ArtifactRef  # The outcome to measure.
    data: str  # Directory of the prepared data.
    default: ArtifactRef | None = None  # The published default's outcome, measured as well.
    suites: Mapping[str, str] = field(default_factory=dict)  # Directories of suites, by label.
    folder: str = ""  # Where the reliability diagram and the configuration are written, if at all.
    title: str = ""  # Of the diagram.
    configuration: Mapping[str, Any] = field(default_factory=dict)  # Of ``configuration.yaml``.


@dataclass(frozen=True, kw_only=True)
class FitWork:
    """Calibrators to fit on the validation rows of a split of logits, judged on its test rows."""

    data: str  # Directory of the prepared logits.
    calibrators: Mapping[str, Part]  # By recipe.
    metrics: tuple[str, ...]  # What to report, as ``calibration_report`` names it.


@dataclass(frozen=True)
class Cost:
    """What a job has cost so far."""

    seconds: float = 0.0  # Of all steps, those before an interruption included.
    epoch_seconds: float | None = None  # The mean; None before there was one.
    peak_memory: float | None = None  # Bytes; None before there was an epoch.
    reused: bool = False  # Whether the outcome was found in the store.


@dataclass(frozen=True, kw_only=True)
class Job:
    """One thing to compute.

    Its key identifies it for good: a resumed sweep gives out the same. For ``deterministic`` and
    ``graph`` see ``trial_device`` and ``TaskData``.
    """

    key: str
    group: str  # The study that it belongs to; schedulers compare jobs of one group.
    number: int  # In the group.
    work: StageWork | TestWork | FitWork
    cpus: float = 1  # Number of threads.
    gpus: float = 0.0  # A fraction also bounds its memory; 0 is the CPU.
    processes: int = 1  # That train its network together.
    deterministic: bool = False
    graph: bool = False
    epochs: int = 0  # Of which a scheduler may cut it short; 0 if it runs to its end anyway.
    attempt: int = 0  # How often it was given out before.
    failures: int = 0  # How many attempts a machine failed.
    avoided: frozenset[str] = frozenset()  # Nodes that failed it.
    cost: Cost = Cost()  # The highest that an earlier attempt reported.

    @property
    def alone(self) -> bool:
        """Return True if it needs a whole GPU because a share of one did not suffice."""
        return self.attempt > self.failures


@dataclass(frozen=True)
class Fault:
    """Why a job failed."""

    kind: FaultKind
    reason: str  # One line.
    traceback: str = ""  # The innermost frames, if any were raised.


@dataclass(frozen=True)
class EpochMetrics:
    """The figures after one epoch."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Measured:
    """What else is known of a configuration that was measured on test data."""

    default: str | None  # Key of the published default's predictions; None if not measured.
    seconds: float | None  # What the chain of stages cost; None if that is not known.
    computed: Mapping[str, Mapping[str, Any]]  # Of each stage of the chain; see ``computed_on``.
    files: Mapping[str, str] = field(default_factory=dict)  # The written ones, path by name.


@dataclass(frozen=True)
class Fit:
    """One calibrator, fitted and judged."""

    metrics: Mapping[str, float]  # On the test rows, fractions; empty if it could not be fitted.
    seconds: float = 0.0  # The processor's, in the fit alone.
    reason: str = ""  # Why there are no metrics.


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a worker has to say of a job: some while it runs, one when it ends."""

    status: Status
    metrics: Mapping[str, float] = field(default_factory=dict)  # The last ones, fractions.
    epoch: int = 0  # How many epochs were computed; 0 for an outcome that was found.
    history: Sequence[EpochMetrics] = ()  # The epochs since the last report.
    artifact: str = ""  # Key of the stored outcome, once it has finished.
    fault: Fault | None = None
    cost: Cost = Cost()
    host: str = ""  # The machine's name.
    node: str = ""  # The executor's name of the machine.
    gpu: str = ""  # The executor's name of the GPU it computes on, if that is one.
    notices: tuple[str, ...] = ()  # What a person should know of.
    measured: Measured | None = None  # Of a ``TestWork`` that has finished.
    fits: Mapping[str, Fit] = field(default_factory=dict)  # Of a finished ``FitWork``, by recipe.

    @property
    def ended(self) -> bool:
        """Return True if no other report of this attempt follows."""
        return self.status in (Status.FINISHED, Status.PRUNED, Status.FAILED)

    @property
    def broken(self) -> bool:
        """Return True if the process that reported so has to end."""
        return self.fault is not None and self.fault.kind in (FaultKind.MACHINE, FaultKind.CODE)


def lost(last: Report | None = None) -> Report:
    """Return the report of a job whose process ended without one, given the last one heard."""
    fault = Fault(FaultKind.MACHINE, PROCESS_ENDED)
    return Report(status=Status.FAILED, fault=fault, cost=last.cost if last else Cost())


def hung(job: Job, last: Report, seconds: float) -> Report:
    """Return the report of a job that made no progress and was killed: the machine's fault."""
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
    """Return the end of an attempt, with the cost of an earlier attempt if that was higher."""
    own = report.fault is None or report.fault.kind == FaultKind.CONFIGURATION
    if own or report.cost.seconds >= job.cost.seconds:
        return report
    return replace(report, cost=job.cost)


def next_attempt(job: Job, report: Report, most_failures: int) -> Job | None:
    """Return a failed job as it is to be tried again, or None if its end stands.

    A machine's fault is tried again elsewhere, up to ``most_failures`` times, and what altered code
    refused, always. What ran out of the memory of its share of a GPU is tried once more, on a whole
    one.
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
