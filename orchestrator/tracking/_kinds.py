"""Our own trackers, by the schemes of their addresses. MLflow is behind all of them.

It takes seconds to import, and checking an address needs nothing of it.
"""

import os
import socket
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.sweep.tracking_uri import (
    ALLOWED,
    TRACKERS,
    TrackerKind,
    elsewhere,
    sqlite_file,
)
from orchestrator.tracking.mlflow.sqlite import describe_database, require_database
from orchestrator.tracking.tracker import Tracker
from trainables.common.errors import InputError
from trainables.common.files import user_of, why
from trainables.common.paths import check_server, control_fault, shown

PACKAGES = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary"}


class _Mlflow(TrackerKind):
    @classmethod
    def open(cls, uri: str, create: bool = False) -> Tracker:
        cls.check(uri)
        return cls.opened(uri)

    @classmethod
    def opened(cls, uri: str) -> Tracker:
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


def _check_writable(folder: Path, where: str) -> None:
    """Refuse a folder that cannot be written, or created."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{where}: {folder} is not a folder that can be written")
