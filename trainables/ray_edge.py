"""The one module here that knows Ray: a Tune trainable that computes stages."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout
from ray import tune

from trainables.artifacts import ArtifactStore
from trainables.data import PreparedData, seal_test_data
from trainables.engine import default_device
from trainables.stages import StageRequest, StageRun, TaskData, open_stage

__all__ = ["StageTrainable"]

WAIT_SECONDS = 0.2  # Pause of a trial that waits for another one that computes the same stage.
# Silence after which the other one counts as stopped: a scheduler may have ended its trial, and its
# actor keeps the lock until it is given another.
PATIENCE_SECONDS = 600.0
ENDED = ("finished", "failed")


class StageTrainable(tune.Trainable):
    """Computes the stage that its configuration asks for; one actor serves many trials.

    The configuration holds ``request`` (the fields of a ``StageRequest``), ``cpus`` (threads of
    the trial), ``gpus`` (0 for a trial that computes on the CPU) and ``score`` (name of the
    validation metric that a scheduler compares). Every report holds ``status`` (``running``,
    ``waiting``, ``finished`` or ``failed``), ``reason``, ``metrics``, ``history`` (the epochs since
    the last report), ``epoch``, ``score`` (infinite before there is a metric), ``reused`` and
    ``seconds`` (of all steps, those before an interruption included).

    A stage that raises ends as ``failed`` with its reason, not as an error of the actor: to try
    the same computation again would fail again. A process that dies is Tune's to restart.
    """

    def setup(self, config: dict[str, Any], storage: str = "", report_seconds: float = 2.0) -> None:
        """Give up test data for good and open the first trial.

        Args:
            config: See the class.
            storage: Root of the artifact store.
            report_seconds: Epochs shorter than this are reported together.
        """
        self._notices: list[str] = []  # What a person should know of, such as a damaged artifact.
        self._store = ArtifactStore(Path(storage), self._notices.append)
        self._report_seconds = report_seconds
        self._tasks: dict[tuple[str, torch.device], TaskData] = {}
        self._lock: Any = None
        seal_test_data()
        self._open(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Forget the last trial and open another in the same process."""
        self.cleanup()
        self._open(new_config)
        return True

    def _open(self, config: dict[str, Any]) -> None:
        torch.set_num_threads(max(1, int(config["cpus"])))
        self._device = default_device() if config["gpus"] else torch.device("cpu")
        self._request = StageRequest(**config["request"])
        self._score = config["score"]
        self._run: StageRun | None = None
        self._metrics: dict[str, float] = {}
        self._resumed: dict[str, Any] | None = None
        self._history: list[dict[str, Any]] = []
        self._reported = 0
        self._reused = False
        self._seconds = 0.0
        self._epoch = 0

    def step(self) -> dict[str, Any]:
        """Compute for a while and report."""
        started = time.monotonic()
        reason = ""
        try:
            status = self._advance(started)
        except Exception as error:  # noqa: BLE001 - the trial's boundary: the reason is reported
            status, reason = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
        if status in ENDED:
            self.cleanup()
        elif self._lock is not None:
            os.utime(self._lock.lock_file)
        self._seconds += time.monotonic() - started
        history, self._reported = self._history[self._reported :], len(self._history)
        notices = list(self._notices)
        self._notices.clear()
        return {
            "status": status,
            "reason": reason,
            "reused": self._reused,
            "metrics": self._metrics,
            "history": history,
            "notices": notices,
            "epoch": self._epoch,
            "seconds": self._seconds,
            "score": self._metrics.get(self._score, float("inf")),
            "done": status in ENDED,
        }

    def _advance(self, started: float) -> str:
        """Compute until it is time to report or all is done; return the trial's status."""
        run = self._run or self._begin()
        if run is None:
            return "finished" if self._reused else "waiting"
        while run.epoch < run.epochs:
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
            self._metrics, self._reused = dict(found.record["metrics"]), True
            self._history = list(found.record["history"])
            return None
        self._run = open_stage(self._request, self._store, data)
        if self._resumed is not None:
            self._run.load_state_dict(self._resumed)
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
            prepared = PreparedData.open(directory)
            # Stored evaluations hold the test labels too.
            evaluations = self._store.root / "evaluate"
            evaluations.mkdir(parents=True, exist_ok=True)
            seal_test_data(prepared.directory, evaluations)
            self._tasks[place] = TaskData(prepared, self._device)
        return self._tasks[place]

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the state of an unfinished stage."""
        state = self._run.state_dict() if self._run is not None else self._resumed
        content = {"stage": state, "seconds": self._seconds, "history": self._history}
        torch.save(content, Path(checkpoint_dir) / "state.pt")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Have the stage go on from a checkpoint's folder once it is opened."""
        path = Path(checkpoint) / "state.pt"
        state = torch.load(path, map_location="cpu", weights_only=True)
        self._resumed, self._seconds = state["stage"], state["seconds"]
        self._history, self._reported = state["history"], len(state["history"])

    def cleanup(self) -> None:
        """Let go of the device's memory and of the artifact's lock."""
        self._run = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
