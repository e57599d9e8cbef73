"""What passes between a driver and its workers: a job, the reports on it, and the retry rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from trainables.common.errors import StorageError
from trainables.stages import StageRequest


class Status(StrEnum):
    """How a job stands.

    It waits while another one computes the same; a scheduler that stops it early has it pruned.
    """

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


Part: TypeAlias = tuple[str, Mapping[str, Any]] | None
"""A calibrator and its parameters; None for none."""

PROCESS_ENDED = "the trial's process ended more often than resources.max_failures allows"


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """A stage to compute from training and validation data.

    Attributes:
        request: The stage.
        together: Stages that come next; they may be computed in the same pass.
        score: The validation metric, ``val_*``, by which a scheduler compares jobs of a group.
    """

    request: StageRequest
    together: tuple[StageRequest, ...] = ()
    score: str = "val_nll"


@dataclass(frozen=True, kw_only=True)
class TestWork:
    """A chosen configuration to measure on test data.

    Attributes:
        stage, artifact: The outcome to measure.
        default: Key of the published default's outcome, to be measured beside it; empty for none.
        data: Directory of the prepared data.
        suites: Directories of prepared suites, by label.
        folder: Where the reliability diagram and the configuration are written; empty for nowhere.
        title: Of the diagram.
        configuration: What ``configuration.yaml`` holds.
    """

    __test__ = False

    stage: str
    artifact: str
    data: str
    default: str = ""
    suites: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    title: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FitWork:
    """Calibrators to fit on the validation rows of a split of logits, judged on its test rows.

    Attributes:
        data: Directory of the prepared logits.
        calibrators: By recipe the calibrator and its parameters; None for the logits as given.
        metrics: What to report, as ``calibration_report`` names it.
    """

    data: str
    calibrators: Mapping[str, Part]
    metrics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One thing to compute.

    Attributes:
        key: Identifies it for good; a resumed sweep gives out the same.
        group: The study that it belongs to; schedulers compare jobs of one group.
        number: Its number in the group.
        work: What to compute.
        cpus: Number of threads.
        gpus: Number or fraction of GPUs; a fraction also bounds its memory, 0 is the CPU.
        processes: Number of processes that train its network together.
        deterministic, graph: See ``trial_device`` and ``TaskData``.
        epochs: Of how many epochs a scheduler may cut it short; 0 if it runs to its end anyway.
        attempt: How often it was given out before.
        failures: How many attempts a machine failed.
        avoided: Nodes that failed it.
    """

    key: str
    group: str
    number: int
    work: StageWork | TestWork | FitWork
    cpus: float = 1
    gpus: float = 0.0
    processes: int = 1
    deterministic: bool = False
    graph: bool = False
    epochs: int = 0
    attempt: int = 0
    failures: int = 0
    avoided: frozenset[str] = frozenset()

    @property
    def alone(self) -> bool:
        """Return True if it needs a whole GPU because a share of one did not suffice."""
        return self.attempt > self.failures


@dataclass(frozen=True)
class Fault:
    """Why a job failed.

    Attributes:
        kind: Whose fault it is.
        reason: One line.
        traceback: The innermost frames, if any were raised.
    """

    kind: FaultKind
    reason: str
    traceback: str = ""


@dataclass(frozen=True)
class EpochMetrics:
    """The figures after one epoch."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Cost:
    """What a job has cost so far.

    Attributes:
        seconds: Of all steps, those before an interruption included.
        epoch_seconds, peak_memory: Mean of an epoch, and bytes; None before there was one.
        reused: Whether the outcome was found in the store.
    """

    seconds: float = 0.0
    epoch_seconds: float | None = None
    peak_memory: float | None = None
    reused: bool = False


@dataclass(frozen=True)
class Measured:
    """What else is known of a configuration that was measured on test data.

    Attributes:
        default: Key of the predictions of the published default; None if it was not measured.
        seconds: What the chain of stages cost; None if that is not known.
        computed: On what each stage of the chain was computed; see ``computed_on``.
        files: The written ones, path by name.
    """

    default: str | None
    seconds: float | None
    computed: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fit:
    """One calibrator, fitted and judged.

    Attributes:
        metrics: On the test rows, fractions; empty if it could not be fitted.
        seconds: The processor's, in the fit alone.
        reason: Why there are no metrics; else empty.
    """

    metrics: Mapping[str, float]
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a worker has to say of a job: some while it runs, one when it ends.

    Attributes:
        status: How the job stands.
        metrics: The last ones, fractions.
        epoch: How many epochs were computed; 0 for an outcome that was found.
        history: The epochs since the last report.
        artifact: Key of the stored outcome, once it has finished.
        fault: Why it failed.
        cost: What it has cost.
        host, node: Where it runs: the machine's name, and the executor's name of it.
        gpu: The executor's name of the GPU it computes on, if that is one.
        notices: What a person should know of.
        measured: Of a ``TestWork`` that has finished.
        fits: Of a ``FitWork`` that has finished, by recipe.
    """

    status: Status
    metrics: Mapping[str, float] = field(default_factory=dict)
    epoch: int = 0
    history: Sequence[EpochMetrics] = ()
    artifact: str = ""
    fault: Fault | None = None
    cost: Cost = Cost()
    host: str = ""
    node: str = ""
    gpu: str = ""
    notices: tuple[str, ...] = ()
    measured: Measured | None = None
    fits: Mapping[str, Fit] = field(default_factory=dict)

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


def next_attempt(job: Job, report: Report, most_failures: int) -> Job | None:
    """Return a failed job as it is to be tried again, or None if its end stands.

    A machine's fault is tried again elsewhere, up to ``most_failures`` times, and what altered code
    refused, always. What ran out of the memory of its share of a GPU is tried once more, on a whole
    one.

    Raises:
        StorageError: If the storage failed it: no other job could end well.
    """
    kind = report.fault.kind if report.fault else None
    if report.fault is not None and kind == FaultKind.STORAGE:
        raise StorageError(report.fault.reason)
    if kind == FaultKind.MEMORY and 0 < job.gpus < 1:
        return replace(job, gpus=1.0, attempt=job.attempt + 1)
    if kind == FaultKind.CODE or (kind == FaultKind.MACHINE and job.failures < most_failures):
        avoided = job.avoided | ({report.node} if report.node else set())
        again = job.attempt + 1
        return replace(job, attempt=again, failures=job.failures + 1, avoided=avoided)
    return None
