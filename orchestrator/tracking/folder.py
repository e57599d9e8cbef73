"""Stores runs as JSON files in a folder, without MLflow.

The folder has ``experiments/NAME/experiment.json``, ``.../runs/ID.json`` and ``.../files/ID/``.
"""

import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any
from urllib.parse import quote

from orchestrator.tracking import _names as names
from orchestrator.tracking._changes import Change
from orchestrator.tracking.tracker import (
    Experiment,
    RefusedError,
    Run,
    RunQuery,
    Tracker,
    UnreachableError,
)
from trainables.common.errors import InputError
from trainables.common.files import drafted, make_folders, write_whole
from trainables.common.paths import SYNC

Record = dict[str, Any]
SETTLED = 100_000_000  # Nanoseconds after which another change gives a folder another time.
_latest: dict[Path, tuple[int, list[Run]]] = {}  # Runs of the experiment of the last query.


class FolderTracker(Tracker):
    """A folder of runs, created if missing; only one process may write to an experiment."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        folder = Path(uri.partition(":")[2])
        self._folder, self._experiments = folder, folder / "experiments"
        with translated(folder):
            make_folders(self._experiments)

    def open_experiment(
        self, name: str, artifact_root: Path, kind: str = "sweep"
    ) -> tuple[Experiment, bool]:
        place = quote(name, safe="")
        file = self._experiments / place / "experiment.json"
        created = not file.exists()
        if created:
            _write(file, {"name": name, "kind": kind, "created": time.time_ns() // 1_000_000})
        return Experiment(place, _read(file)["created"]), created

    def sweeps(self) -> dict[str, str]:
        files = sorted(self._experiments.glob("*/experiment.json"))
        known = {file.parent.name: _read(file) for file in files}
        return {found["name"]: place for place, found in known.items() if found["kind"] == "sweep"}

    def runs(self, query: RunQuery) -> Iterator[Run]:
        found = [
            run
            for experiment in query.experiments
            for run in _runs_in(self._experiments / experiment / "runs")
            if query.tags.items() <= run.tags.items()
            and (query.marked is None or run.tags.get(query.marked))
            and query.status in (None, run.status)
        ]
        if (order := query.order) is None:
            found.sort(key=lambda run: (-run.started, run.id))
        else:
            found.sort(key=lambda run: ([_rank(run.metrics.get(m)) for m in order], run.started))
        yield from found

    def run(self, run_id: str) -> Run:
        return _run(self._file(run_id))

    def create_run(
        self,
        experiment: str,
        name: str,
        tags: Mapping[str, str],
        started: int,
        parent: str | None = None,
    ) -> str:
        run_id = uuid.uuid4().hex
        record: Record = {"name": name, "parent": parent, "tags": dict(tags), "started": started}
        record |= {"status": names.RUNNING, "ended": None, "params": {}, "metrics": {}}
        _write(self._experiments / experiment / "runs" / f"{run_id}.json", record)
        return run_id

    def log(self, run_id: str, change: Change) -> None:
        with self._changed(run_id) as record:
            for name, value in change.params.items():
                if record["params"].setdefault(name, value) != value:
                    raise RefusedError(f"run {run_id}: parameter {name} has another value already")
            record["tags"] |= change.tags
            news: dict[str, set[tuple[int, int, float]]] = {}
            for point in change.points:
                news.setdefault(point.name, set()).add((point.step, point.time, point.value))
            for name, points in news.items():
                before = map(tuple, record["metrics"].get(name, []))
                record["metrics"][name] = sorted(points.union(before))

    def upload(self, run_id: str, name: str, path: Path) -> None:
        if not path.is_file():
            raise RefusedError(f"artifact {name}: {path} does not exist")
        place = self._files(run_id)
        with translated(place):
            make_folders(place)
            with drafted(place / Path(name).name, durable=True) as draft:
                copyfile(path, draft)

    def set_status(self, run_id: str, status: str, time: int) -> None:
        with self._changed(run_id) as record:
            record["status"] = status
            if status != names.RUNNING:
                record["ended"] = time

    def delete_run(self, run_id: str) -> None:
        """Delete a run; its files stay."""
        file = self._file(run_id)
        with translated(file):
            file.unlink()

    def _record(self, run_id: str) -> Record:
        return _read(self._file(run_id))

    def _file(self, run_id: str) -> Path:
        found = list(self._experiments.glob(f"*/runs/{run_id}.json")) if run_id.isalnum() else []
        if not found:
            raise RefusedError(f"no run {run_id!r} in {self._folder}")
        return found[0]

    def _files(self, run_id: str) -> Path:
        return self._file(run_id).parents[1] / "files" / run_id

    @contextmanager
    def _changed(self, run_id: str) -> Iterator[Record]:
        """Yield the content of a run's file, and write the file with the changes."""
        file = self._file(run_id)
        record = _read(file)
        yield record
        _write(file, record)


def _rank(value: float | None) -> tuple[bool, bool, float]:
    """Return a sort key: numbers first, then NaN, then missing metrics."""
    number = math.nan if value is None else value
    return value is None, math.isnan(number), 0.0 if math.isnan(number) else number


def _runs_in(folder: Path) -> list[Run]:
    """Return the runs of an experiment; the last result is cached until the folder changes.

    Every write renames a file into the folder, which changes the folder's modification time.
    """
    changed = folder.stat().st_mtime_ns if folder.exists() else 0
    if _latest.get(folder, (0,))[0] != changed or not changed:
        runs = [_run(file) for file in folder.glob("*.json")]
        _latest.clear()
        if time.time_ns() - changed < SETTLED:
            return runs
        _latest[folder] = changed, runs
    return _latest[folder][1]


def _run(file: Path) -> Run:
    record = _read(file)
    return Run(
        file.stem,
        file.parents[1].name,
        record["parent"],
        record["status"],
        record["started"],
        record["tags"],
        {name: points[-1][-1] for name, points in record["metrics"].items()},
    )


def _read(file: Path) -> Record:
    with translated(file):
        content = file.read_bytes()
    try:
        return json.loads(content.decode())
    except ValueError as error:
        raise InputError(
            f"{file} is damaged ({error}); delete its experiment's folder, then `{SYNC}`"
        ) from error


def _write(file: Path, record: Record) -> None:
    with translated(file):
        make_folders(file.parent)
        write_whole(file, json.dumps(record), durable=True)


@contextmanager
def translated(place: Path) -> Iterator[None]:
    """Raise disk errors as ``UnreachableError``, because they may pass."""
    try:
        yield
    except OSError as error:
        raise UnreachableError(f"tracking folder: {place}: {error.strerror or error}") from error
