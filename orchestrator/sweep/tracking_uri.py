"""Check tracking addresses, and choose the default one."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE, ELSEWHERE, redacted, shown, storage_folder
from trainables.common.registry import Registry
from trainables.common.words import many

SQLITE, SQLITE_DRIVER = "sqlite:///", "sqlite+pysqlite"
ESCAPED = {ord(sign): f"%{ord(sign):X}" for sign in "%?#"}
ALLOWED = (
    "sqlite:///PATH/mlflow.db, http(s)://HOST:PORT, postgresql://USER@HOST/DATABASE, "
    "tensorboard:FOLDER, trackio:PROJECT or wandb:PROJECT"
)


class TrackerKind:
    """The trackers behind the addresses of one scheme.

    Attributes:
        name: The scheme.
        spans_machines: Whether several machines may use one tracker at the same time.
        needs: A module that has to be installed; "" for none.
    """

    name: str
    spans_machines = True
    needs = ""

    @classmethod
    def check(cls, uri: str) -> None:
        """Raise ``InputError`` if an address cannot be used."""
        if not uri.isprintable():
            raise InputError(f"tracking uri {shown(uri)} contains a control character; remove it")

    @classmethod
    def open(cls, uri: str, create: bool = False) -> Any:
        """Return the ``Tracker`` at an address; ``create`` it if it is missing.

        Raises:
            InputError: If the address cannot be used, or has no tracker and ``create`` is false.
        """
        cls.check(uri)
        return cls(uri)  # type: ignore[call-arg]

    @classmethod
    def read(cls, uri: str) -> Any:
        """Return a tracker for reading runs at an address; raises as ``open`` does."""
        return cls.open(uri)

    @classmethod
    def preload(cls) -> None:
        """Import the modules that ``open`` needs."""

    @classmethod
    def listens(cls, uri: str, timeout: float) -> bool:
        """Return True if an address accepts connections."""
        return True

    @classmethod
    def state(cls, uri: str, timeout: float) -> str:
        """Return one line about the tracker at an address, without creating it.

        Raises:
            InputError: If the address cannot be used or does not answer.
        """
        return f"{redacted(uri)} has {many(len(cls.open(uri).sweeps()), 'sweep')}"


DATABASE = "mlflow.db"  # In the storage folder.
TRACKERS: Registry[TrackerKind] = Registry("tracker", "orchestrator.tracking._kinds", TrackerKind)


def tracker_kind(uri: str) -> type[TrackerKind]:
    """Return the kind of tracker at an address; the kind may come from an installed plugin."""
    scheme, separator, _ = uri.partition(":")
    kind = scheme.partition("+")[0]
    if separator and kind not in TRACKERS:
        from trainables.plugins import active_plugins, load_plugins  # They import PyTorch.

        if not active_plugins():
            load_plugins((), installed=True)
    if separator and kind in TRACKERS:
        return TRACKERS[kind]
    raise InputError(
        f"tracking uri {shown(uri)} is not supported (MLflow 3 no longer supports plain folders); "
        f"allowed: {ALLOWED}"
    )


def is_plugged(uri: str) -> bool:
    """Return True if the tracker at an address comes from a plugin."""
    return TRACKERS.code(tracker_kind(uri).name) is not None


def default_tracking_uri(storage: str = DEFAULT_STORAGE) -> str:
    """Return ``MLFLOW_TRACKING_URI`` if set, else the database inside a storage folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or database_uri(storage_folder(storage))


def elsewhere(uri: str) -> str:
    """Return the part of a message that says how to choose another tracker."""
    if uri == os.environ.get("MLFLOW_TRACKING_URI"):
        return "(set by MLFLOW_TRACKING_URI; unset this variable to use --storage)"
    return ELSEWHERE


def database_uri(storage: Path) -> str:
    """Return the address of the database inside a storage folder."""
    return sqlite_uri(storage / DATABASE)


def sqlite_uri(file: Path) -> str:
    """Return the address of a SQLite file, with special characters escaped."""
    return f"{SQLITE}{str(file).translate(ESCAPED)}"


def sqlite_file(uri: str) -> Path | None:
    """Return the database file of a SQLite address, else None."""
    kind, separator, path = uri.partition(":///")
    return Path(unquote(path)) if separator and kind in ("sqlite", SQLITE_DRIVER) else None


def mlflow_uri(uri: str) -> str:
    """Return the address for MLflow, which needs SQLite's driver if characters are escaped."""
    escaped = uri.startswith(SQLITE) and "%" in uri
    return uri.replace("sqlite", SQLITE_DRIVER, 1) if escaped else uri


def check_tracking_uri(uri: str) -> None:
    """Raise ``InputError`` if a sweep cannot use a tracking address."""
    tracker_kind(uri).check(uri)


def check_no_login(uri: str, place: str, setting: str) -> None:
    """Raise ``InputError`` if a login in an address would be stored in plain text.

    ``place`` says where it would be stored, ``setting`` where to set the variables instead.
    """
    if redacted(uri) != uri:
        raise InputError(
            f"tracking.uri {shown(uri)}: its login or query would be stored {place} in plain text; "
            "leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            f"PGPASSWORD, {setting}"
        )
