"""Which tracking addresses are accepted, and which is used where none is given."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from trainables.common.addresses import check_server, redacted, shown
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE, ELSEWHERE, control_fault, storage_folder
from trainables.common.registry import Registry
from trainables.common.sharing import user_of, why

SQLITE, SQLITE_DRIVER = "sqlite:///", "sqlite+pysqlite"
ESCAPED = {ord(sign): f"%{ord(sign):X}" for sign in "%?#"}
FOLDER = "folder:"
PORTS = {"http": 80, "https": 443, "postgresql": 5432}
_PACKAGES = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary"}
ALLOWED = (
    "sqlite:///PATH/mlflow.db, http(s)://HOST:PORT, postgresql://USER@HOST/DATABASE or folder:/PATH"
)


class Trackers(Registry[Any]):
    """The trackers of plugins, by the scheme of their addresses; ``open_tracker`` opens ours."""

    def own_names(self) -> list[str]:
        """Return the schemes of the addresses that we take."""
        return ["folder", "sqlite", *PORTS]

    def __contains__(self, name: object) -> bool:
        """Return True if a plugin takes addresses of that scheme."""
        return name in self._plugged


TRACKERS = Trackers("tracker", "orchestrator.tracking", object)
"""Each a ``Tracker``: no room below it can say so."""


def plugged_tracker(uri: str) -> Any:
    """Return the class of a plugin that takes an address, or None.

    Where no plugin is known yet, those that are installed are looked at.
    """
    scheme, separator, _ = uri.partition(":")
    if not separator or scheme.partition("+")[0] in TRACKERS.own_names():
        return None
    if scheme not in TRACKERS:
        from trainables.plugins import active_plugins, load_plugins  # They import PyTorch.

        if not active_plugins():
            load_plugins((), installed=True)
    found = scheme in TRACKERS
    return TRACKERS[scheme] if found else None


def default_tracking_uri(storage: str = DEFAULT_STORAGE) -> str:
    """Return ``MLFLOW_TRACKING_URI`` if set, else the database inside a storage folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or database_uri(storage_folder(storage))


def elsewhere(uri: str) -> str:
    """Return the part of a message that says how to name another tracker than this one."""
    if uri == os.environ.get("MLFLOW_TRACKING_URI"):
        return "(MLFLOW_TRACKING_URI names it: --storage has no effect until it is unset)"
    return ELSEWHERE


def database_uri(storage: Path) -> str:
    """Return the address of the database inside a storage folder."""
    return sqlite_uri(storage / "mlflow.db")


def sqlite_uri(file: Path) -> str:
    """Return the address of a SQLite file; a path may hold characters that an address escapes."""
    return f"{SQLITE}{str(file).translate(ESCAPED)}"


def sqlite_file(uri: str) -> Path | None:
    """Return the database file of a SQLite address, else None."""
    kind, separator, path = uri.partition(":///")
    return Path(unquote(path)) if separator and kind in ("sqlite", SQLITE_DRIVER) else None


def mlflow_uri(uri: str) -> str:
    """Return the address that MLflow opens for one of ours.

    For an escaped path of ``sqlite:`` MLflow makes folders of the escaped name as well, unless the
    address names its driver.
    """
    escaped = uri.startswith(SQLITE) and "%" in uri
    return uri.replace("sqlite", SQLITE_DRIVER, 1) if escaped else uri


def tracked_folder(uri: str) -> Path | None:
    """Return the folder of an address of plain files, else None."""
    return Path(uri.removeprefix(FOLDER)) if uri.startswith(FOLDER) else None


def check_tracking_uri(uri: str, what: str = "tracking uri", written: bool = True) -> None:
    """Refuse a tracking address that a sweep cannot use, before anything starts.

    Args:
        uri: ``sqlite:///PATH``, ``http(s)://HOST[:PORT]``, ``postgresql://USER@HOST/DATABASE``,
            ``folder:/PATH``, or one whose scheme is that of a plugin's tracker.
        what: Names the address in messages, which do not show what may be secret in it.
        written: Whether a file or folder has to be writable.

    Raises:
        InputError: If it is none of these, or its folder cannot be written, or the driver for
            PostgreSQL is not installed.
    """
    scheme, separator, _ = uri.partition("://")
    kind = scheme.partition("+")[0]
    if separator and kind == "sqlite" and not control_fault(uri):
        _check_sqlite(uri, what, written)
    elif uri.startswith(f"{FOLDER}/") and not separator and uri.isprintable():
        if written:
            _check_writable(Path(uri.removeprefix(FOLDER)), f"{what} {shown(uri)}")
    elif (plugged := plugged_tracker(uri)) is not None:
        plugged.check(uri)
    elif separator and kind in PORTS:
        check_server(what, uri, ALLOWED)
        if kind == "postgresql":
            _check_driver(uri, what)
    else:
        raise InputError(
            f"{what} {shown(uri)} is not supported (MLflow 3 has given up plain folders); "
            f"allowed: {ALLOWED}"
        )


def check_no_login(uri: str, place: str, setting: str) -> None:
    """Refuse a tracking address that shows a login where it is written down.

    Raises:
        InputError: If it holds one, or a query; the text names the ``place`` that would show it and
            the ``setting``, where the login belongs.
    """
    if redacted(uri) != uri:
        raise InputError(
            f"tracking.uri {shown(uri)}: its login or query would lie {place} in plain text; leave "
            "it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or PGPASSWORD, "
            f"{setting}"
        )


def _check_driver(uri: str, what: str) -> None:
    # Which driver an address without one means differs between versions of SQLAlchemy.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        driver = make_url(uri).get_driver_name()
        if not driver:
            raise ValueError("a plus sign and no driver after it")
    except (ArgumentError, ValueError) as error:
        raise InputError(f"{what} {shown(uri)} is no address; allowed: {ALLOWED}") from error
    if find_spec(driver) is None:
        package = _PACKAGES.get(driver, driver)
        raise InputError(f"{what} {shown(uri)} needs `pip install {package}`")


def _check_sqlite(uri: str, what: str, written: bool) -> None:
    file, where = sqlite_file(uri), f"{what} {shown(uri)}"
    try:
        if file is None or file.name in ("", ":memory:") or "?" in uri or file.is_dir():
            raise InputError(f"{where} names no file; allowed: {ALLOWED}")
        if not written:
            return
        if not file.parent.exists() and Path(uri.partition(":///")[2]).parent.exists():
            raise InputError(f"{where} means {file}; in an address write %25 for a % of the path")
        _check_writable(file.parent, where)
        if file.exists() and not os.access(file, os.W_OK):
            raise InputError(f"{where} cannot be written: it belongs to {user_of(file)}")
    except OSError as error:
        raise InputError(f"{where} names no file: {why(error)}") from error


def _check_writable(folder: Path, where: str) -> None:
    """Refuse a folder that cannot be written, or created."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{where}: {folder} is not a folder that can be written")
