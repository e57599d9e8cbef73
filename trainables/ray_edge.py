"""The one module here that knows Ray: a Tune trainable that computes stages."""

import contextlib
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import ray
import torch
from filelock import Timeout
from ray import tune

from trainables.common.devices import trial_device
from trainables.common.errors import StorageError
from trainables.common.faults import is_machines_fault, reason_of, where_raised
from trainables.common.files import drafted
from trainables.common.meter import Meter
from trainables.data import PreparedData, seal_test_data
from trainables.stages import StageRequest, StageRun, TaskData, with_objective
from trainables.stages.together import open_together
from trainables.store.artifacts import ArtifactStore

WAIT_SECONDS = 0.2  # Pause of a trial that waits for another one that computes the same stage.
# Silence after which the other one counts as stopped: a scheduler may have ended its trial, and its
# actor keeps the lock until it is given another.
PATIENCE_SECONDS = 600.0
ENDED = ("finished", "failed")
BROKEN = "broken"
HOST = os.uname().nodename


class StageTrainable(tune.Trainable):
    """Computes the stage that its configuration asks for; one actor serves many trials.

    The configuration holds ``request`` (the fields of a ``StageRequest``), ``together`` (those of
    stages that come next and may be computed in the same pass; may be missing), ``cpus`` (threads
    of the trial), ``gpus`` (0 for a trial that computes on the CPU; a fraction also bounds its
    memory), ``deterministic`` (see ``trial_device``; may be missing), ``graph`` (see ``TaskData``;
    may be missing) and ``score`` (name of the validation metric that a scheduler compares). Every
    report holds ``status`` (``running``, ``waiting``, ``finished``, ``failed`` or ``broken``),
    ``reason`` and ``traceback`` (empty unless it failed or broke), ``host``, ``node`` (its name in
    Ray, empty without Ray), ``metrics``, ``history`` (the epochs since the last report), ``epoch``,
    ``score`` (infinite before there is a metric), ``reused``, ``storage_failed`` (the storage
    cannot be written: no trial can end well), ``memory_failed`` (a GPU's memory did not suffice: it
    may where no other trial shares it), ``seconds`` (of all steps, those before an interruption
    included), ``epoch_seconds`` and ``peak_memory`` (see ``Meter``).

    A stage that raises ends as ``failed`` with its reason, not as an error of the actor: to try
    the same computation again would fail again. Where the machine is at fault (see
    ``is_machines_fault``) the trial reports ``broken`` and raises at its next step: Tune then ends
    this process and starts the trial in another one, as it does when a process dies, on another
    node if there is one. Every so many reports the state of the stage is written beside the
    artifacts, under the stage's key: so a trial goes on from there whether its process, its node or
    the driver died, and in whichever trial or sweep the same stage is asked for again. Tune's own
    checkpoints die with its run.
    """

    def setup(
        self,
        config: dict[str, Any],
        storage: str = "",
        report_seconds: float = 2.0,
        checkpoint_every: int = 0,
    ) -> None:
        """Give up test data for good and open the first trial.

        ``storage`` is the root of the artifact store. Epochs shorter than ``report_seconds`` are
        reported together; ``checkpoint_every`` counts reports, 0 for no checkpoints.
        """
        self._notices: list[str] = []  # What a person should know of, such as a damaged artifact.
        self._store = ArtifactStore(Path(storage), self._notices.append)
        self._report_seconds = report_seconds
        self._checkpoint_every = checkpoint_every
        self._tasks: dict[tuple[str, torch.device], TaskData] = {}
        self._lock: Any = None
        seal_test_data()
        if config["gpus"] and not torch.cuda.is_available():
            self._notices.append(
                f"{HOST}: torch sees no GPU there: trials that ask for one compute on the CPU"
            )
        self._open(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Forget the last trial and open another in the same process."""
        self.cleanup()
        self._open(new_config)
        return True

    def _open(self, config: dict[str, Any]) -> None:
        torch.set_num_threads(max(1, int(config["cpus"])))
        self._request = StageRequest(**config["request"])
        self._together = [StageRequest(**fields) for fields in config.get("together", ())]
        self._score = config["score"]
        self._run: StageRun | None = None
        self._metrics: dict[str, float] = {}
        self._reports = 0
        self._history: list[dict[str, Any]] = []
        self._reported = 0
        self._reused = False
        self._seconds = 0.0
        self._epoch = 0
        self._fault: Exception | None = None
        self._graph = config.get("graph", False)
        self._place(config["gpus"], config.get("deterministic", False))

    def _place(self, gpus: float, deterministic: bool) -> None:
        """Take the device; where that fails, the first step tells."""
        self._refusal: Exception | None = None
        try:
            self._device = trial_device(gpus, deterministic)
            self._meter = Meter(self._device)
        except Exception as error:  # noqa: BLE001 - raised again where it can be reported
            self._refusal, self._device = error, torch.device("cpu")
            self._meter = Meter(self._device)

    def step(self) -> dict[str, Any]:
        """Compute for a while and report."""
        if self._fault is not None:
            raise self._fault
        started = time.monotonic()
        error: Exception | None = None
        try:
            status = self._advance(started)
            self._seconds += time.monotonic() - started
            if status == "running":
                self._save_checkpoint()
        except Exception as caught:  # noqa: BLE001 - the trial's boundary: the reason is reported
            error, status = caught, BROKEN if is_machines_fault(caught) else "failed"
        if error is not None and status == BROKEN:
            self._give_up(error)
        elif status in ENDED:
            self._drop_checkpoint(isinstance(error, StorageError | torch.OutOfMemoryError))
            self.cleanup()
        elif self._lock is not None:
            os.utime(self._lock.lock_file)
        return self._report(status, error)

    def _report(self, status: str, error: Exception | None) -> dict[str, Any]:
        history, self._reported = self._history[self._reported :], len(self._history)
        notices = list(self._notices)
        self._notices.clear()
        return {
            "status": status,
            "reason": "" if error is None else _described(error),
            "traceback": "" if error is None else where_raised(error),
            "host": HOST,
            "node": node_here(),
            "storage_failed": isinstance(error, StorageError),
            "memory_failed": isinstance(error, torch.OutOfMemoryError),
            "reused": self._reused,
            "metrics": self._metrics,
            "history": history,
            "notices": notices,
            "epoch": self._epoch,
            "seconds": self._seconds,
            **self._meter.report(),
            "score": self._metrics.get(self._score, float("inf")),
            "done": status in ENDED,
        }

    def _advance(self, started: float) -> str:
        """Compute until it is time to report or all is done; return the trial's status."""
        if self._refusal is not None:
            raise self._refusal
        run = self._run or self._begin()
        if run is None:
            return "finished" if self._reused else "waiting"
        while run.epoch < run.epochs:
            with self._meter.epoch():
                self._metrics = run.run_epoch()
            self._epoch = run.epoch
            self._history.append({"step": run.epoch, "metrics": self._metrics})
            if time.monotonic() - started > self._report_seconds:
                break
        if run.epoch < run.epochs:
            return "running"
        run.finish(self._metrics, self._history, self._seconds + time.monotonic() - started)
        return "finished"

    def _begin(self) -> StageRun | None:
        """Open the stage; None if another trial has computed it or is computing it now."""
        data = self._task(self._request.data)
        key = self._request.key()
        if not self._take_lock(key):
            time.sleep(WAIT_SECONDS)
            return None
        found = self._store.find(self._request.stage, key)
        if found is not None:
            self._metrics = with_objective(found.record["metrics"], self._score, found)
            self._reused = True
            self._history = list(found.record["history"])
            return None
        self._run = self._open_run(data)
        return self._run

    def _take_lock(self, key: str) -> bool:
        """Become the one that computes the stage; False while another one does."""
        lock = self._store.lock(self._request.stage, key)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            # To compute a stage twice is a waste; to wait for good would be a deadlock.
            return time.time() - os.stat(lock.lock_file).st_mtime > PATIENCE_SECONDS
        self._lock = lock
        os.utime(lock.lock_file)
        return True

    def _task(self, directory: str) -> TaskData:
        place = directory, self._device
        if place not in self._tasks:
            if self._device.type != "cpu":
                self._tasks.clear()  # The memory of a GPU is for the task at hand.
            prepared = PreparedData.open(directory)
            # Stored evaluations hold the test labels too.
            evaluations = self._store.root / "evaluate"
            evaluations.mkdir(parents=True, exist_ok=True)
            seal_test_data(prepared.directory, evaluations)
            self._tasks[place] = TaskData(prepared, self._device, self._graph)
        return self._tasks[place]

    @property
    def _what(self) -> str:
        return f"{self._request.stage} of {'+'.join(self._request.parts)}"

    @property
    def _checkpoint(self) -> Path:
        return self._store.checkpoint(self._request.stage, self._request.key())

    def _save_checkpoint(self) -> None:
        """Write the state of the unfinished stage, if its turn has come; whole or not at all."""
        self._reports += 1
        if not self._checkpoint_every or self._reports % self._checkpoint_every or not self._run:
            return
        path = self._checkpoint
        content = {
            "stage": self._run.state_dict(),
            "seconds": self._seconds,
            "history": self._history,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with drafted(path) as draft, draft.open("wb") as stream:
                torch.save(content, stream)
        except (OSError, RuntimeError) as error:
            # Of a full disk torch says only at which byte it stopped.
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            raise StorageError(f"cannot write checkpoint {path}: {reason}") from error

    def _open_run(self, data: TaskData) -> StageRun:
        """Return the stage's run, which goes on from a checkpoint if there is one that fits."""
        run, path = self._fresh_run(data), self._checkpoint
        if not path.exists():
            return run
        try:
            state = _intact(path)
            run.load_state_dict(state["stage"])
        except Exception as error:  # noqa: BLE001 - there is no telling how damage shows
            self._notices.append(
                f"checkpoint {path} is damaged ({type(error).__name__}): the stage starts anew"
            )
            path.unlink(missing_ok=True)
            return self._fresh_run(data)
        self._seconds, self._history = state["seconds"], state["history"]
        self._notices.append(f"{self._what} goes on from epoch {run.epoch} of {run.epochs}")
        return run

    def _fresh_run(self, data: TaskData) -> StageRun:
        run = open_together(self._request, self._together, self._store, data)
        run.ask_for(self._score)
        return run

    def _give_up(self, error: Exception) -> None:
        """Leave the stage to another process, which goes on from the checkpoint."""
        self._fault = error
        self._notices.append(
            f"{self._what} failed on {HOST}, by no fault of its own: {_described(error)}"
        )
        # A device that failed once may refuse this too.
        with contextlib.suppress(RuntimeError):
            self.cleanup()

    def _drop_checkpoint(self, keep: bool) -> None:
        """Remove what a stage that ended will not need again."""
        if not keep and self._run is not None:
            self._checkpoint.unlink(missing_ok=True)

    def cleanup(self) -> None:
        """Let go of the device's memory and of the artifact's lock."""
        self._run = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def node_here() -> str:
    """Return Ray's name of the node that this process is on, empty without Ray."""
    # Ray would start one to tell.
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, StorageError) else reason_of(error)


def _intact(path: Path) -> dict[str, Any]:
    """Read a checkpoint whose every checksum holds: torch writes them, but does not look at them.

    Raises:
        ValueError: If one does not hold. Other damage raises whatever it happens to raise.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} does not match its checksum")
    return dict(torch.load(path, map_location="cpu", weights_only=True))
