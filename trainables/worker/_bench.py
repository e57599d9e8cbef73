"""What the jobs of a process share, and the base of what it does for each of them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainables.common.devices import Meter
from trainables.common.errors import AlteredCodeError
from trainables.common.files import follow_folder, require_code
from trainables.common.paths import on_this_machine
from trainables.data import PreparedData, seal_test_data
from trainables.jobs import EpochMetrics, Fault, Status
from trainables.plugins import Pinned, load_plugins
from trainables.stages import LastPass, StageRequest, StageRun, TaskData, open_stage
from trainables.store.artifacts import ArtifactStore


class Bench:
    """Store, data, device and clock of a process that computes one job after another.

    Device, meter and processes are those of the job at hand; ``notices`` are what a person should
    know of, such as a damaged artifact.

    Args:
        storage: Root of the artifact store.
        sealed: Whether the process gives up test data, for the rest of its life.
        report_seconds: Epochs shorter than this are reported together.
        checkpoint_seconds: How long a stage computes between stored states; None for never.
        logs: Folder of the jobs' logs; None for none.
        plugins: What the parts of jobs may come from.
        code: ``code_files`` of the driver, without which nothing is computed; None for any.
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
        self._altered: AlteredCodeError | None = None  # Of a plugin: no job can be computed.
        try:
            load_plugins(plugins)  # Before test data are sealed: it may read whatever it likes.
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
        """Raise ``AlteredCodeError`` unless this process runs the code of the driver."""
        if self._altered is not None:
            raise self._altered
        if self._code is not None:
            require_code(self._code)

    def use(self, device: torch.device, processes: int = 1) -> None:
        """Compute on a device from now on, with so many processes, and measure there."""
        self.device, self.processes, self.meter = device, processes, Meter(device)

    def clock(self) -> float:
        """Return seconds, rising."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Do nothing for a while."""
        time.sleep(seconds)

    def task(self, directory: str, graph: bool) -> TaskData:
        """Return the training and validation data of a task on the device, read once."""
        place = directory, self.device, self.processes
        if place not in self._tasks:
            if self.device.type != "cpu":
                self._tasks.clear()  # The memory of a GPU is for the task at hand.
            data = self.open_data(directory)
            if self._sealed:
                # Stored evaluations hold the test labels too.
                evaluations = self.store.root / "evaluate"
                evaluations.mkdir(parents=True, exist_ok=True)
                seal_test_data(data.directory, evaluations)
            self._tasks[place] = TaskData(data, self.device, graph, self.processes, self._plugins)
        return self._tasks[place]

    def open_data(self, directory: str) -> PreparedData:
        """Return prepared data, taken from the storage's bucket if they are not here."""
        self.store.fetch_folder(on_this_machine(Path(directory)))
        return PreparedData.open(directory)

    def open_run(
        self, request: StageRequest, together: Sequence[StageRequest], data: TaskData
    ) -> StageRun:
        """Return the run of a stage; see ``open_stage``."""
        return open_stage(request, self.store, data, together)


class Computation(ABC):
    """One job, being computed; ``what`` names it in notices."""

    def __init__(self, bench: Bench, what: str) -> None:
        self.bench, self.what = bench, what
        self.metrics: Mapping[str, float] = {}  # The last ones.
        self.history: list[EpochMetrics] = []
        self.seconds = 0.0  # Those before an interruption included.
        self.reused = False  # Whether the outcome was found in the store.

    @abstractmethod
    def advance(self) -> Status:
        """Compute until it is time to report or all is done; return the job's status."""

    @abstractmethod
    def outcome(self) -> dict[str, Any]:
        """Return the fields of the last report that hold the result of a finished job."""

    def rest(self) -> None:  # noqa: B027
        """Store all that another process needs to resume, before a report of a running job."""

    def ended(self, fault: Fault | None) -> None:  # noqa: B027
        """Remove what a job that ended, perhaps by a fault, leaves behind."""

    def close(self) -> None:  # noqa: B027
        """Release all locks."""
