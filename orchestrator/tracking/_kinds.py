"""The built-in trackers, by the scheme of their addresses.

Databases and servers need MLflow, which takes seconds to import. The check of an address does not
need it, nor does reading a SQLite file of the schema that ``DatabaseReader`` knows.
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
    """A SQLite file: one writer locks all of it, and network file systems damage it."""

    spans_machines = False

    @classmethod
    def check(cls, uri: str, written: bool = True) -> None:
        """Refuse an address that names no file or, if ``written``, no file that can be written."""
        file, where = sqlite_file(uri), f"tracking uri {shown(uri)}"
        try:
            if fault := control_fault(uri):
                raise InputError(f"{where} cannot be a path: {fault}")
            if file is None or file.name in ("", ":memory:") or "?" in uri or file.is_dir():
                raise InputError(f"{where} names no file; allowed: {ALLOWED}")
            if not written:
                return
            if not file.parent.exists() and Path(uri.partition(":///")[2]).parent.exists():
                raise InputError(f"{where} means the file {file}; write %25 for each % in its path")
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
    """An MLflow server reached by HTTP."""

    port = 80


@TRACKERS.register("https")
class Https(_Server):
    """An MLflow server reached by HTTPS."""

    port = 443


@TRACKERS.register("postgresql")
class Postgresql(_Server):
    """A PostgreSQL database that MLflow uses directly, without an MLflow server."""

    port = 5432

    @classmethod
    def check(cls, uri: str) -> None:
        """Refuse an invalid address, or one whose driver is not installed."""
        # SQLAlchemy is asked because its default driver depends on its version.
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        super().check(uri)
        where = f"tracking uri {shown(uri)}"
        try:
            driver = make_url(uri).get_driver_name()
            if not driver:
                raise ValueError("a plus sign and no driver after it")
        except (ArgumentError, ValueError) as error:
            raise InputError(f"{where} is not an address; allowed: {ALLOWED}") from error
        if find_spec(driver) is None:
            raise InputError(f"{where} needs `pip install {PACKAGES.get(driver, driver)}`")


@TRACKERS.register("tensorboard")
class Tensorboard(TrackerKind):
    """A folder with event files for TensorBoard, used by one machine."""

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
            raise InputError(f"tracking uri {shown(uri)}: the folder does not exist")
        return TensorboardTracker(uri)

    @classmethod
    def preload(cls) -> None:
        import tensorboardX  # noqa: F401


class _Project(TrackerKind):
    """A project of Weights & Biases or a compatible module, used by one machine."""

    spans_machines = False

    @classmethod
    def check(cls, uri: str) -> None:
        super().check(uri)
        where, project = f"tracking uri {shown(uri)}", uri.partition(":")[2]
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}", project):
            remedy = f"use {cls.name}:PROJECT with letters, digits and ._- in the name"
            raise InputError(f"{where}: {project!r} is not a project; {remedy}")
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
    """A local project of trackio, or a Space of the Hub if TRACKIO_SPACE_ID is set."""

    needs = "trackio"


@TRACKERS.register("wandb")
class Wandb(_Project):
    """A project of Weights & Biases, offline unless WANDB_MODE says otherwise."""

    needs = "wandb"


def _check_writable(folder: Path, where: str) -> None:
    """Raise ``InputError`` if a folder cannot be written or created."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{where}: {folder} is not a folder that can be written")


def open_tracker(uri: str, create: bool = False) -> Tracker:
    """Return the tracker at an address; see ``check_tracking_uri``.

    Without ``create``, a missing database or folder raises ``InputError``.
    """
    tracker: Tracker = tracker_kind(uri).open(uri, create)
    return tracker


def read_tracker(uri: str) -> RunReader:
    """Return a reader of the runs at an address, without MLflow if possible."""
    reader: RunReader = tracker_kind(uri).read(uri)
    return reader


def preload(uri: str) -> None:
    """Import the modules that ``open_tracker`` needs for an address, to save time later."""
    tracker_kind(uri).preload()


def ping(uri: str, timeout: float = 5.0) -> tuple[bool, str]:
    """Return whether a tracker answers within ``timeout`` seconds, and a line of detail or remedy.

    A missing SQLite file passes if it could be created; it is not created.
    """
    try:
        check_tracking_uri(uri)
        return True, tracker_kind(uri).state(uri, timeout)
    except InputError as error:
        return False, str(error)


def check_login(uri: str, timeout: float = 5.0) -> None:
    """Raise ``LoginError`` if the tracking server refuses the login.

    A server that does not answer within ``timeout`` seconds is no error: events wait in the
    journal.
    """
    if urlsplit(uri).hostname and listens(uri):
        try:
            tracker_kind(uri).state(uri, timeout)
        except UnreachableError as error:
            if isinstance(error, LoginError):
                raise


def listens(uri: str, timeout: float = 2.0) -> bool:
    """Return True if something accepts connections at an address.

    Trackers without a server, and those of plugins without a check of their own, always return
    True. MLflow is not needed, as no request is sent; ``ping`` sends one.
    """
    return tracker_kind(uri).listens(uri, timeout)


@dataclass(frozen=True)
class SingleRun:
    """A run that is not a study or trial, such as a night or the tables of a sweep.

    Attributes:
        key: Unique in the experiment.
        name: Displayed name.
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
    """Deliver a run to the tracker and return its id; delivering it again changes nothing.

    An interrupted delivery is completed. If the tracker created the run twice because its answer
    got lost, the later ones are deleted. A missing experiment is created for runs of that ``kind``,
    such as ``nights``; see ``Tracker.open_experiment``.
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
