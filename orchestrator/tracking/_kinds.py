"""Our own trackers, by the schemes of their addresses.

MLflow is behind databases and servers. It takes seconds to import, and checking an address needs
nothing of it.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.sweep.tracking_uri import (
    ALLOWED,
    TRACKERS,
    TrackerKind,
    check_tracking_uri,
    elsewhere,
    sqlite_file,
    tracker_kind,
)
from orchestrator.tracking import _names as names
from orchestrator.tracking._changes import Change, Point
from orchestrator.tracking.mlflow.reader import DatabaseReader, is_readable
from orchestrator.tracking.mlflow.sqlite import describe_database, require_database
from orchestrator.tracking.project import ProjectTracker, records
from orchestrator.tracking.tracker import (
    LoginError,
    RefusedError,
    RunQuery,
    RunReader,
    Tracker,
    UnreachableError,
)
from trainables.common.errors import InputError, require_installed
from trainables.common.files import user_of, why
from trainables.common.paths import check_server, control_fault, shown

PACKAGES = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary"}


class _Mlflow(TrackerKind):
    needs = "mlflow"

    @classmethod
    def open(cls, uri: str, create: bool = False) -> Tracker:
        cls.check(uri)
        return cls.opened(uri)

    @classmethod
    def opened(cls, uri: str) -> Tracker:
        require_installed(cls.needs, f"tracking uri {shown(uri)}")
        from orchestrator.tracking.mlflow.server import MlflowTracker

        return MlflowTracker(uri)

    @classmethod
    def preload(cls) -> None:
        import orchestrator.tracking.mlflow.server  # noqa: F401


@TRACKERS.register("sqlite")
class Database(_Mlflow):
    """A SQLite file: it locks as a whole for one writer, and breaks on network file systems."""

    spans_machines = False

    @classmethod
    def check(cls, uri: str, written: bool = True) -> None:
        """Refuse an address that names no file, or none that can be ``written``."""
        file, where = sqlite_file(uri), f"tracking uri {shown(uri)}"
        try:
            if fault := control_fault(uri):
                raise InputError(f"{where} cannot be a path: {fault}")
            if file is None or file.name in ("", ":memory:") or "?" in uri or file.is_dir():
                raise InputError(f"{where} names no file; allowed: {ALLOWED}")
            if not written:
                return
            if not file.parent.exists() and Path(uri.partition(":///")[2]).parent.exists():
                raise InputError(
                    f"{where} means {file}; in an address write %25 for a % of the path"
                )
            _check_writable(file.parent, where)
            if file.exists() and not os.access(file, os.W_OK):
                raise InputError(f"{where} cannot be written: it belongs to {user_of(file)}")
        except OSError as error:
            raise InputError(f"{where} names no file: {why(error)}") from error

    @classmethod
    def open(cls, uri: str, create: bool = False) -> Tracker:
        cls.check(uri, written=create)
        if not create and (file := sqlite_file(uri)):
            require_database(file, elsewhere(uri))
        return cls.opened(uri)

    @classmethod
    def read(cls, uri: str) -> RunReader:
        cls.check(uri, written=False)
        file = sqlite_file(uri)
        assert file is not None
        require_database(file, elsewhere(uri))
        return DatabaseReader(uri, file) if is_readable(file) else cls.opened(uri)

    @classmethod
    def state(cls, uri: str, timeout: float) -> str:
        file = sqlite_file(uri)
        assert file is not None
        return describe_database(file)


class _Server(_Mlflow):
    port: int

    @classmethod
    def check(cls, uri: str) -> None:
        check_server("tracking uri", uri, ALLOWED)

    @classmethod
    def listens(cls, uri: str, timeout: float) -> bool:
        parts = urlsplit(uri)
        place = parts.hostname, parts.port or cls.port
        try:
            socket.create_connection(place, timeout).close()
        except OSError:
            return False
        return True

    @classmethod
    def state(cls, uri: str, timeout: float) -> str:
        from orchestrator.tracking.mlflow.server import probe

        return probe(uri, timeout)


@TRACKERS.register("http")
class Http(_Server):
    """A tracking server."""

    port = 80


@TRACKERS.register("https")
class Https(_Server):
    """A tracking server."""

    port = 443


@TRACKERS.register("postgresql")
class Postgresql(_Server):
    """A database without a server of MLflow in front of it."""

    port = 5432

    @classmethod
    def check(cls, uri: str) -> None:
        """Refuse an invalid address, or one whose driver is not installed."""
        # Which driver an address without one means differs between versions of SQLAlchemy.
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        super().check(uri)
        where = f"tracking uri {shown(uri)}"
        try:
            driver = make_url(uri).get_driver_name()
            if not driver:
                raise ValueError("a plus sign and no driver after it")
        except (ArgumentError, ValueError) as error:
            raise InputError(f"{where} is no address; allowed: {ALLOWED}") from error
        if find_spec(driver) is None:
            raise InputError(f"{where} needs `pip install {PACKAGES.get(driver, driver)}`")


@TRACKERS.register("tensorboard")
class Tensorboard(TrackerKind):
    """A folder with event files for TensorBoard, written by one machine."""

    spans_machines = False

    @classmethod
    def check(cls, uri: str) -> None:
        super().check(uri)
        where = f"tracking uri {shown(uri)}"
        folder = Path(uri.partition(":")[2])
        if not folder.name:
            raise InputError(f"{where} names no folder; use tensorboard:FOLDER")
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            _check_writable(folder.absolute().parent, where)

    @classmethod
    def open(cls, uri: str, create: bool = False) -> Tracker:
        from orchestrator.tracking.tensorboard import TensorboardTracker

        cls.check(uri)
        if not create and not Path(uri.partition(":")[2]).is_dir():
            raise InputError(f"tracking uri {shown(uri)}: there is no such folder")
        return TensorboardTracker(uri)

    @classmethod
    def preload(cls) -> None:
        import tensorboardX  # noqa: F401


class _Project(TrackerKind):
    """A project of a module that has the functions of Weights & Biases, used by one machine."""

    spans_machines = False

    @classmethod
    def check(cls, uri: str) -> None:
        super().check(uri)
        where, project = f"tracking uri {shown(uri)}", uri.partition(":")[2]
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}", project):
            told = f"use {cls.name}:PROJECT with letters, digits and ._- in the name"
            raise InputError(f"{where}: {project!r} is not a project; {told}")
        _check_writable(records(uri), where)

    @classmethod
    def open(cls, uri: str, create: bool = False) -> Tracker:
        cls.check(uri)
        if create:
            require_installed(cls.needs, f"tracking uri {shown(uri)}")
        elif not records(uri).is_dir():
            raise InputError(f"tracking uri {shown(uri)}: no run was tracked there on this machine")
        return ProjectTracker(uri)

    @classmethod
    def preload(cls) -> None:
        import_module(cls.needs)


@TRACKERS.register("trackio")
class Trackio(_Project):
    """A local project of trackio, which TRACKIO_SPACE_ID moves to a Space of the Hub."""

    needs = "trackio"


@TRACKERS.register("wandb")
class Wandb(_Project):
    """A project of Weights & Biases, offline unless WANDB_MODE says otherwise."""

    needs = "wandb"


def _check_writable(folder: Path, where: str) -> None:
    """Refuse a folder that cannot be written, or created."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{where}: {folder} is not a folder that can be written")


def open_tracker(uri: str, create: bool = False) -> Tracker:
    """Return the tracker at an address; see ``check_tracking_uri``.

    A file that is not there is refused, unless it may be created.
    """
    tracker: Tracker = tracker_kind(uri).open(uri, create)
    return tracker


def read_tracker(uri: str) -> RunReader:
    """Return what answers questions about the runs at an address; MLflow may not be needed."""
    reader: RunReader = tracker_kind(uri).read(uri)
    return reader


def preload(uri: str) -> None:
    """Import what ``open_tracker`` needs for an address; whoever waits anyway has time for it."""
    tracker_kind(uri).preload()


def ping(uri: str, timeout: float = 5.0) -> tuple[bool, str]:
    """Return whether a tracker answers within ``timeout`` seconds, and one line of detail.

    That holds the remedy if it does not. A file that does not exist yet is fine when it could be
    created; it is not created.
    """
    try:
        check_tracking_uri(uri)
        return True, tracker_kind(uri).state(uri, timeout)
    except InputError as error:
        return False, str(error)


def check_login(uri: str, timeout: float = 5.0) -> None:
    """Refuse a login that the tracking server refuses.

    A server that gives no answer within ``timeout`` seconds may be away: its events wait in
    the journal.
    """
    if urlsplit(uri).hostname and listens(uri):
        try:
            tracker_kind(uri).state(uri, timeout)
        except UnreachableError as error:
            if isinstance(error, LoginError):
                raise


def listens(uri: str, timeout: float = 2.0) -> bool:
    """Return True if anything takes connections at an address; a file or a plugin always does.

    This costs no import of MLflow and says nothing of what answers there; ``ping`` does.
    """
    return tracker_kind(uri).listens(uri, timeout)


@dataclass(frozen=True)
class SingleRun:
    """A run to be there once.

    Attributes:
        key: Its identity within the experiment.
        name: Its shown name.
        status: ``FINISHED`` or ``FAILED``.
        started, ended: UNIX time in milliseconds.
        metrics: Finite values.
        files: Artifacts, by name.
    """

    key: str
    name: str
    status: str
    started: int
    ended: int
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def deliver_run(uri: str, experiment: str, kind: str, run: SingleRun, artifact_root: Path) -> str:
    """Bring a run to the tracker and return its id; doing it again changes nothing.

    A delivery that broke off is completed. Should the tracker have made the run twice, because its
    answer got lost, the later ones are deleted. The experiment is created if absent, for runs of
    that ``kind``, such as ``nights``; see ``Tracker.open_experiment``.
    """
    tracker = open_tracker(uri, create=True)
    try:
        place = tracker.open_experiment(experiment, artifact_root, kind)[0].id
        return _deliver(tracker, place, kind, run)
    except RefusedError as error:
        raise InputError(f"run {run.name}: the tracking store refuses it: {error}") from error


def _deliver(tracker: Tracker, experiment: str, kind: str, run: SingleRun) -> str:
    tags = {**run.tags, names.KEY: run.key, names.KIND: kind}
    same = list(tracker.runs(RunQuery([experiment], {names.KEY: run.key}, order=())))
    for double in same[1:]:
        tracker.delete_run(double.id)
    run_id = same[0].id if same else tracker.create_run(experiment, run.name, tags, run.started)
    points = [Point(name, value, run.ended, 0) for name, value in run.metrics.items()]
    tracker.log(run_id, Change(run_id, points, tags=tags))
    for name, path in run.files.items():
        tracker.upload(run_id, name, path)
    tracker.set_status(run_id, run.status, run.ended)
    return run_id
