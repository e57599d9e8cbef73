"""Shows the figures of runs in a project of trackio or Weights & Biases.

Both modules have the same functions (https://docs.wandb.ai/ref/python/,
https://huggingface.co/docs/trackio) and work offline by default.
"""

import io
import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestrator.tracking import _names as names
from orchestrator.tracking._changes import Change
from orchestrator.tracking.folder import FolderTracker, Record, translated
from orchestrator.tracking.tracker import UnreachableError

QUIET = {"auto_log_cpu": False, "auto_log_gpu": False}  # Keep machine metrics out of the runs.


def records(uri: str) -> Path:
    """Return the local folder with a project's runs; trackio and wandb cannot search by tag."""
    kind, _, project = uri.partition(":")
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "calsweep" / kind / project


class ProjectTracker(FolderTracker):
    """Keeps runs in a folder, and sends their metrics to a project of trackio or W&B.

    Metrics are sent when a run ends; metrics that are logged later are sent at once. Runs are read
    from the folder.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(f"folder:{records(uri)}")
        self.uri = uri
        self._kind, _, self._project = uri.partition(":")

    def log(self, run_id: str, change: Change) -> None:
        super().log(run_id, change)
        self._send_news(run_id)

    def set_status(self, run_id: str, status: str, time: int) -> None:
        super().set_status(run_id, status, time)
        self._send_news(run_id)

    def _send_news(self, run_id: str) -> None:
        """Send those figures of an ended run that were not sent before."""
        record = self._record(run_id)
        sent = record.get("sent", {})
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        for name, points in record["metrics"].items():
            before = {tuple(point) for point in sent.get(name, ())}
            for step, time, value in points:
                if (step, time, value) not in before:
                    rows[step][name] = value
        if record["status"] == names.RUNNING or not (rows or "sent" not in record):
            return
        with translated(Path(self._project)), redirect_stdout(io.StringIO()):
            self._send(run_id, record, rows)
        with self._changed(run_id) as kept:
            kept["sent"] = record["metrics"]

    def _send(self, run_id: str, record: Record, rows: Mapping[int, Mapping[str, float]]) -> None:
        more: dict[str, Any] = {"id": run_id} if self._kind == "wandb" else QUIET
        if self._kind == "wandb":
            os.environ.setdefault("WANDB_MODE", "offline")
            os.environ.setdefault("WANDB_SILENT", "true")
        module = import_module(self._kind)
        try:
            run = module.init(
                project=self._project,
                name=f"{record['name']}-{run_id[:8]}",
                group=self._file(run_id).parents[1].name,
                config={**record["tags"], **record["params"], "status": record["status"]},
                resume="allow",
                **more,
            )
            for step in sorted(rows):
                run.log(dict(rows[step]), step=step)
            module.finish()
        except getattr(module, "Error", OSError) as error:
            raise UnreachableError(f"{self.uri}: {error}") from error
