"""The computation of each kind of job, and the resources that a process's jobs share."""

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from trainables.calibrators import Calibrator, FitWarning, calibrator_from_recipe
from trainables.charts.reliability import reliability_diagram
from trainables.common.devices import Meter
from trainables.common.errors import AlteredCodeError, InputError, StorageError
from trainables.common.files import (
    drafted,
    follow_folder,
    make_folders,
    require_code,
    write_whole,
    writing,
)
from trainables.common.paths import on_this_machine
from trainables.common.pulse import beat
from trainables.common.stages import ArtifactRef
from trainables.common.words import many
from trainables.data import PreparedData, seal_test_data
from trainables.data.suites import SuiteData, find_suite
from trainables.jobs import (
    Cost,
    EpochMetrics,
    Fault,
    FaultKind,
    Fit,
    FitWork,
    Job,
    Measured,
    Part,
    Report,
    StageWork,
    Status,
    TestWork,
)
from trainables.metrics import calibration_report, registered_report, reliability_curve
from trainables.plugins import Pinned, load_plugins
from trainables.stages import (
    LastPass,
    StageRequest,
    StageRun,
    TaskData,
    evaluate_on_test,
    evaluate_suite,
    open_stage,
    pooled,
    with_objective,
)
from trainables.store.artifacts import Artifact, ArtifactStore, Checkpoint
from trainables.store.locks import ArtifactLock, Lease


class Bench:
    """The store, data, device and clock of a process that computes one job after another.

    Device, meter and processes are those of the current job; ``notices`` are messages for the user,
    for example about a damaged artifact.

    Args:
        storage: Root of the artifact store.
        sealed: Whether the process can never read test data.
        report_seconds: Epochs shorter than this are reported together.
        checkpoint_seconds: Time between checkpoints of a stage; None for no checkpoints.
        logs: Folder of the jobs' logs; None for no logs.
        plugins: Plugins that jobs use.
        code: ``code_files`` of the driver. If this process has different code, its jobs fail. None
            accepts any code.
    """

    def __init__(
        self,
        storage: Path | str,
        *,
        sealed: bool,
        report_seconds: float = 2.0,
        checkpoint_seconds: float | None = None,
        logs: Path | str | None = None,
        plugins: Sequence[Pinned] = (),
        code: Mapping[str, str] | None = None,
    ) -> None:
        self._plugins = tuple(plugins)
        self.notices: list[str] = []
        root = on_this_machine(Path(storage))
        follow_folder(root.parent)
        self.store = ArtifactStore(root, self.notices.append)
        self.store.fetch_plugins(plugin.code for plugin in plugins)
        self._altered: AlteredCodeError | None = None  # Set if a plugin changed: all jobs fail.
        try:
            load_plugins(plugins)  # Load them before the seal, because they may read any file.
        except AlteredCodeError as error:
            self._altered = error
        self.report_seconds, self.checkpoint_seconds = report_seconds, checkpoint_seconds
        self.logs = on_this_machine(Path(logs)) if logs else None
        self.last_pass = LastPass()
        self.use(torch.device("cpu"))
        self._sealed, self._code = sealed, code
        self._tasks: dict[tuple[str, torch.device, int], TaskData] = {}
        if sealed:
            seal_test_data()

    def require_code(self) -> None:
        """Raise ``AlteredCodeError`` if this process's code differs from the driver's."""
        if self._altered is not None:
            raise self._altered
        if self._code is not None:
            require_code(self._code)

    def use(self, device: torch.device, processes: int = 1) -> None:
        """Set the device, its meter, and the number of processes."""
        self.device, self.processes, self.meter = device, processes, Meter(device)

    def clock(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def task(self, directory: str, graph: bool) -> TaskData:
        """Return the training and validation data of a task on the device; cached."""
        place = directory, self.device, self.processes
        if place not in self._tasks:
            if self.device.type != "cpu":
                self._tasks.clear()  # Keep only the current task in the GPU's memory.
            data = self.open_data(directory)
            if self._sealed:
                # Stored evaluations contain test labels as well.
                evaluations = self.store.root / "evaluate"
                evaluations.mkdir(parents=True, exist_ok=True)
                seal_test_data(data.directory, evaluations)
            self._tasks[place] = TaskData(data, self.device, graph, self.processes, self._plugins)
        return self._tasks[place]

    def open_data(self, directory: str) -> PreparedData:
        """Return prepared data; fetch the folder from the storage's bucket if it is missing."""
        self.store.fetch_folder(on_this_machine(Path(directory)))
        return PreparedData.open(directory)

    def open_run(self, request: StageRequest, data: TaskData) -> StageRun:
        """Return the run of a stage; see ``open_stage``."""
        return open_stage(request, self.store, data)


class Computation(ABC):
    """The computation of one job; ``what`` names it in messages."""

    def __init__(self, bench: Bench, what: str) -> None:
        self.bench, self.what = bench, what
        self.metrics: Mapping[str, float] = {}  # The latest metrics.
        self.history: list[EpochMetrics] = []
        self.seconds = 0.0  # Includes the time before an interruption.
        self.reused = False  # Whether the outcome was already stored.

    @abstractmethod
    def advance(self) -> Status:
        """Compute until the next report or the end; return the job's status."""

    @abstractmethod
    def outcome(self) -> dict[str, Any]:
        """Return the result of a finished job as fields of its last report."""

    def rest(self) -> None:  # noqa: B027
        """Save the state for another process; called before each report of an unfinished job."""

    def ended(self, fault: Fault | None) -> None:  # noqa: B027
        """Clean up after a job that finished or failed."""

    def close(self) -> None:  # noqa: B027
        """Release all locks."""


WAIT_SECONDS = 0.2  # Pause while another job computes the same stage.


class StageComputation(Computation):
    """Computes a stage, or uses its stored outcome.

    Checkpoints are stored under the stage's key. If the process, node or driver dies, any trial or
    sweep that requests the same stage resumes it.
    """

    def __init__(self, bench: Bench, job: Job, work: StageWork) -> None:
        super().__init__(bench, f"{work.request.stage} of {'+'.join(work.request.parts)}")
        self._work, self._request, self._graph = work, work.request, job.graph
        self._run: StageRun | None = None
        self._lock: ArtifactLock | Lease | None = None
        self._saved = 0.0

    def advance(self) -> Status:
        """Compute some epochs; store the outcome after the last one."""
        started = self.bench.clock()
        try:
            run = self._run or self._begin()
            if run is None:
                return Status.FINISHED if self.reused else Status.WAITING
            while run.epoch < run.epochs:
                with self.bench.meter.epoch():
                    self.metrics = run.run_epoch()
                beat()
                self.history.append(EpochMetrics(run.epoch, self.metrics))
                if self.bench.clock() - started > self.bench.report_seconds:
                    break
            if run.epoch < run.epochs:
                return Status.RUNNING
            spent = self.seconds + self.bench.clock() - started
            run.finish(self.metrics, [vars(epoch) for epoch in self.history], spent)
            self.bench.store.settle()
            return Status.FINISHED
        finally:
            self.seconds += self.bench.clock() - started

    def outcome(self) -> dict[str, Any]:
        return {"artifact": self._request.key()}

    def _begin(self) -> StageRun | None:
        """Open the stage; return None if its outcome is stored or another worker computes it."""
        data = self.bench.task(self._request.data, self._graph)
        # Keep the lock while waiting: it measures how long its holder has been silent.
        self._lock = self._lock or self.bench.store.lock(self._request.ref)
        if not self._lock.take():
            self.bench.pause(WAIT_SECONDS)
            return None
        if found := self.bench.store.find(self._request.ref):
            self.metrics, self.history = _recorded(found, self._work.score)
            self.reused = True
        else:
            self._run = self._opened(data)
        return self._run

    def _opened(self, data: TaskData) -> StageRun:
        """Return the stage's run, resumed from its checkpoint if there is an intact one."""
        run, checkpoint = self._fresh_run(data), self._checkpoint
        if not checkpoint.exists():
            return run
        try:
            state = checkpoint.read()
            run.load_state_dict(state["stage"])
        except Exception as error:  # noqa: BLE001 - damage may raise any exception
            damage = f"checkpoint {checkpoint} is damaged ({type(error).__name__})"
            self.bench.notices.append(f"{damage}: the stage starts over")
            checkpoint.remove()
            run.close()
            return self._fresh_run(data)
        self.seconds = self._saved = state["seconds"]
        self.history = [EpochMetrics(**epoch) for epoch in state["history"]]
        self.bench.notices.append(f"{self.what} resumes after epoch {run.epoch} of {run.epochs}")
        return run

    def _fresh_run(self, data: TaskData) -> StageRun:
        run = self.bench.open_run(self._request, data)
        run.ask_for(self._work.score)
        return run

    @property
    def _checkpoint(self) -> Checkpoint:
        return self.bench.store.checkpoint(self._request.ref)

    def rest(self) -> None:
        """Show that the lock's holder is alive, and write a checkpoint when it is due."""
        if self._lock is not None:
            self._lock.keep()
        if self._run is None:
            return
        every = self.bench.checkpoint_seconds
        if every is not None and self.seconds - self._saved >= every:
            self._saved = self.seconds
            history = [vars(epoch) for epoch in self.history]
            content = {"stage": self._run.state_dict(), "seconds": self.seconds}
            self._checkpoint.write({**content, "history": history})

    def ended(self, fault: Fault | None) -> None:
        """Remove the checkpoint if the stage finished or failed because of its configuration."""
        final = fault is None or fault.kind == FaultKind.CONFIGURATION
        if final and self._run is not None:
            self._checkpoint.remove()

    def close(self) -> None:
        """Close the stage and release its lock."""
        if self._run is not None:
            self._run.close()
        self._run = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _recorded(found: Artifact, score: str) -> tuple[dict[str, float], list[EpochMetrics]]:
    """Return the metrics of a stored outcome, including the score, and its epochs."""
    metrics = with_objective(found.record["metrics"], score, found)
    return metrics, [EpochMetrics(**epoch) for epoch in found.record["history"]]


def stored_report(store: ArtifactStore, job: Job) -> Report | None:
    """Return the report on a job whose outcome is stored locally, or None if a worker is needed.

    An earlier job may have stored it, see ``StageRequest.together``. Outcomes of ``train`` are left
    to workers: checking a network takes too long for the loop of all jobs.
    """
    work = job.work
    if not isinstance(work, StageWork) or work.request.stage == "train":
        return None
    ref = work.request.ref
    # Do not fetch from a bucket: this takes too long as well.
    if not store.holds(ref) or (found := store.find(ref)) is None:
        return None
    metrics, history = _recorded(found, work.score)
    cost = Cost(reused=True)
    return Report(
        status=Status.FINISHED, metrics=metrics, history=history, artifact=ref.key, cost=cost
    )


class TestComputation(Computation):
    """Measures a configuration on test data and suites; writes its diagram and YAML file."""

    __test__ = False

    def __init__(self, bench: Bench, job: Job, work: TestWork) -> None:
        super().__init__(bench, f"{work.title or work.artifact.key} on test data")
        self._work = work
        self._outcome: dict[str, Any] = {}

    def advance(self) -> Status:
        store, work, device = self.bench.store, self._work, self.bench.device
        data, last = self.bench.open_data(work.data), self.bench.last_pass
        default = None
        # Measure the default first: features of the chosen network stay cached for other jobs.
        if work.default is not None and store.find(work.default) is not None:
            default = evaluate_on_test(store, work.default, data, device, last)[1].key
        elif work.default is not None:
            fault = store.fault(work.default)
            self.bench.notices.append(f"{self.what} excludes the published default: {fault}")
        metrics, artifact = evaluate_on_test(store, work.artifact, data, device, last)
        rows = artifact.tensors("test")
        # Errors of an image's pixels are dependent, so a plugin's metric has no floor for them.
        floors = "images" not in rows
        metrics |= registered_report(rows["log_probs"], rows["labels"], floors)
        for directory in work.suites.values():
            store.fetch_folder(on_this_machine(Path(directory)))
            metrics |= evaluate_suite(store, work.artifact, data, directory, device)[0]
        stored = {label: SuiteData.open(place) for label, place in work.suites.items()}
        pools = {label: find_suite(suite.name, suite.root).pool for label, suite in stored.items()}
        self.metrics = metrics | pooled(metrics, pools)
        written = self._written(rows)
        store.settle()
        chain = chain_of(store, work.artifact)
        computed = {each.stage: each.record["computed"] for each in chain}
        measured = Measured(default, chain_seconds(chain), computed, written)
        self._outcome = {"artifact": artifact.key, "measured": measured}
        return Status.FINISHED

    def outcome(self) -> dict[str, Any]:
        """Return the key of the predictions and further results."""
        return self._outcome

    def _written(self, rows: Mapping[str, Tensor]) -> dict[str, str]:
        """Write diagram and configuration if the job has a folder; return their paths by name."""
        if not self._work.folder:
            return {}
        folder = on_this_machine(Path(self._work.folder))
        diagram, configuration = folder / "reliability.png", folder / "configuration.yaml"
        curve = reliability_curve(logits=rows["log_probs"], labels=rows["labels"])
        with writing(folder, StorageError):
            make_folders(folder)
            with drafted(diagram, durable=True) as draft:
                draft.write_bytes(reliability_diagram(curve, self._work.title).image(".png"))
            text = yaml.safe_dump(dict(self._work.configuration), sort_keys=False)
            write_whole(configuration, text, durable=True)
        for path in (diagram, configuration):
            self.bench.store.share(path)
        return {path.name: str(path) for path in (diagram, configuration)}


def chain_of(store: ArtifactStore, ref: ArtifactRef | None) -> list[Artifact]:
    """Return a stage's outcome and those of earlier stages, up to the first missing one."""
    chain: list[Artifact] = []
    while ref is not None and (found := store.find(ref)):
        chain.append(found)
        ref = found.upstream
    return chain


def chain_seconds(chain: Sequence[Artifact]) -> float | None:
    """Return the cost of a chain of stages; None if a stage or its cost is missing."""
    costs = [link.record["seconds"] for link in chain if link.record.get("seconds") is not None]
    whole = bool(chain) and chain[-1].upstream is None
    return round(sum(costs), 3) if whole and len(costs) == len(chain) else None


class FitComputation(Computation):
    """Fits a job's calibrators; those that cannot be fitted get a reason instead of metrics."""

    def __init__(self, bench: Bench, job: Job, work: FitWork) -> None:
        super().__init__(bench, f"{many(len(work.calibrators), 'calibrator')} on {work.data}")
        self._work = work
        self._fits: dict[str, Fit] = {}

    def advance(self) -> Status:
        prepared = self.bench.open_data(self._work.data)
        fit, test = prepared.search().validation, prepared.test()
        rows, truth = _tensors(fit.values, fit.labels)
        test_rows, labels = _tensors(test.values, test.labels)
        for recipe, part in self._work.calibrators.items():
            _warm_up(recipe, part)
            started = time.process_time()
            try:
                calibrator = part and _fitted(*part, rows, truth)
            except InputError as error:
                self._fits[recipe] = Fit({}, reason=str(error))
                continue
            seconds = time.process_time() - started
            logits = calibrator(test_rows) if calibrator else test_rows
            report = calibration_report(logits=logits, labels=labels, metrics=self._work.metrics)
            self._fits[recipe] = Fit(report, seconds)
        return Status.FINISHED

    def outcome(self) -> dict[str, Any]:
        return {"fits": self._fits}


_warm: set[str] = set()  # Recipes that this process has fitted before.


def _warm_up(recipe: str, part: Part) -> None:
    """Fit a calibrator on a few rows once, so that no measured time includes imports."""
    if part is None or recipe in _warm:
        return
    _warm.add(recipe)
    draw = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(64, 3, generator=draw), torch.randint(3, (64,), generator=draw)
    with suppress(InputError):  # Some calibrators need more rows.
        _fitted(*part, rows, labels)


def _fitted(name: str, parameters: Mapping[str, Any], rows: Tensor, labels: Tensor) -> Calibrator:
    with warnings.catch_warnings():  # No warning is needed: the metrics show a bad fit.
        warnings.simplefilter("ignore", FitWarning)
        return calibrator_from_recipe(name, parameters).fit(rows, labels)


def _tensors(values: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(values.copy()), torch.from_numpy(labels.copy())
