"""Which tracking addresses are accepted, and whether one answers."""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from trainables.addresses import check_server, shown
from trainables.errors import InputError

SQLITE = "sqlite:///"
SQLITE_HEADER = b"SQLite format 3\0"
PORTS = {"http": 80, "https": 443, "postgresql": 5432}
_PACKAGES = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary"}
ALLOWED = "sqlite:///PATH/mlflow.db, http(s)://HOST:PORT or postgresql://USER@HOST/DATABASE"


def check_tracking_uri(uri: str, what: str = "tracking uri") -> None:
    """Refuse a tracking address that a sweep cannot use, before anything starts.

    Args:
        uri: ``sqlite:///PATH``, ``http(s)://HOST[:PORT]`` or ``postgresql://USER@HOST/DATABASE``.
        what: Names the address in messages, which do not show what may be secret in it.

    Raises:
        InputError: If it is none of these, or the folder of the SQLite file cannot be written, or
            the driver for PostgreSQL is not installed.
    """
    scheme, separator, _ = uri.partition("://")
    kind = scheme.partition("+")[0]
    if separator and kind == "sqlite" and uri.isprintable():
        _check_sqlite(uri, what)
    elif separator and kind in PORTS:
        check_server(what, uri, ALLOWED)
        if kind == "postgresql":
            _check_driver(uri, what)
    else:
        raise InputError(
            f"{what} {shown(uri)} is not supported (MLflow 3 has given up plain folders); "
            f"allowed: {ALLOWED}"
        )


def _check_driver(uri: str, what: str) -> None:
    # Which driver an address without one means differs between versions of SQLAlchemy.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        driver = make_url(uri).get_driver_name()
    except (ArgumentError, ValueError) as error:
        raise InputError(f"{what} {shown(uri)} is no address; allowed: {ALLOWED}") from error
    if find_spec(driver) is None:
        package = _PACKAGES.get(driver, driver)
        raise InputError(f"{what} {shown(uri)} needs `pip install {package}`")


def sqlite_file(uri: str) -> Path | None:
    """Return the database file of a SQLite address, else None."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def is_sqlite(file: Path) -> bool:
    """Say whether a file is a SQLite database, or empty, which SQLite takes for a new one.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        with open(file, "rb") as stream:
            return stream.read(len(SQLITE_HEADER)) in (b"", SQLITE_HEADER)
    except OSError as error:
        raise InputError(f"tracking database {file} cannot be read: {error.strerror}") from error


def ping(uri: str, timeout: float = 5.0) -> tuple[bool, str]:
    """Say whether the tracking store behind an address answers.

    A SQLite file that does not exist yet is fine when it could be created; it is not created.

    Args:
        uri: See ``check_tracking_uri``.
        timeout: Seconds to wait for a server.

    Returns:
        Whether it answers, and one line of detail, with the remedy if it does not.
    """
    try:
        check_tracking_uri(uri)
    except InputError as error:
        return False, str(error)
    file = sqlite_file(uri)
    return _ping_sqlite(file) if file is not None else _ping_server(uri, timeout)


def check_login(uri: str, timeout: float = 5.0) -> None:
    """Refuse a login that the tracking server refuses.

    A server that gives no answer may be away: what is for it waits in the journal.

    Args:
        uri: See ``check_tracking_uri``.
        timeout: Seconds to wait for a server.

    Raises:
        InputError: If the server asks for another user or password.
    """
    if sqlite_file(uri) is not None or not listens(uri):
        return
    from orchestrator.tracking._server import LoginError, UnreachableError, answer_within

    try:
        answer_within(uri, timeout)
    except LoginError:
        raise
    except UnreachableError:
        return


def listens(uri: str, timeout: float = 2.0) -> bool:
    """Say whether anything takes connections at an address; a file always does.

    This costs no import of MLflow and says nothing of what answers there; ``ping`` does.

    Args:
        uri: See ``check_tracking_uri``.
        timeout: Seconds to wait for a server.
    """
    parts = urlsplit(uri)
    if parts.hostname is None:
        return True
    port = parts.port or PORTS[parts.scheme.partition("+")[0]]
    try:
        socket.create_connection((parts.hostname, port), timeout).close()
    except OSError:
        return False
    return True


def _check_sqlite(uri: str, what: str) -> None:
    file, where = sqlite_file(uri), f"{what} {shown(uri)}"
    try:
        if file is None or file.name in ("", ":memory:") or "?" in uri or file.is_dir():
            raise InputError(f"{where} names no file; allowed: {ALLOWED}")
        folder = file.parent
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"{where}: {folder} is not a folder that can be written")
        if file.exists() and not os.access(file, os.W_OK):
            raise InputError(f"{where} cannot be written")
    except OSError as error:
        raise InputError(f"{where} names no file: {error.strerror}") from error


def _ping_sqlite(file: Path) -> tuple[bool, str]:
    if not file.exists():
        return True, f"{file} does not exist yet; the first sweep creates it"
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            version = database.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        return False, f"{file} is no MLflow database ({error}); move it away or name another file"
    return True, f"{file}, schema {version[0] if version else 'unknown'}"


def _ping_server(uri: str, timeout: float) -> tuple[bool, str]:
    from orchestrator.tracking._server import UnreachableError, answer_within

    try:
        return True, answer_within(uri, timeout)
    except UnreachableError as error:
        return False, str(error)
