"""Which tracking addresses are accepted, and which is used where none is given."""

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
        spans_machines: Whether several machines may use one at the same time.
        needs: A module that has to be installed; "" for none.
    """

    name: str
    spans_machines = True
    needs = ""

    @classmethod
    def check(cls, uri: str) -> None:
        """Refuse an address before anything starts.

        Raises:
            InputError: If it cannot be used.
        """
        if not uri.isprintable():
            raise InputError(f"tracking uri {shown(uri)} holds a control character")

    @classmethod
    def open(cls, uri: str, create: bool = False) -> Any:
        """Return the ``Tracker`` at an address, which may be ``create``d.

        Raises:
            InputError: If the address cannot be used, or there is nothing and nothing is created.
        """
        cls.check(uri)
        return cls(uri)  # type: ignore[call-arg]

    @classmethod
    def read(cls, uri: str) -> Any:
        """Return what answers questions about runs at an address; see ``open`` for errors."""
        return cls.open(uri)

    @classmethod
    def preload(cls) -> None:
        """Import what ``open`` needs."""

    @classmethod
    def listens(cls, uri: str, timeout: float) -> bool:
        """Return True if anything accepts connections at an address."""
        return True

    @classmethod
    def state(cls, uri: str, timeout: float) -> str:
        """Return one line about the tracker at an address; nothing is created.

        Raises:
            InputError: If the address cannot be used, or nothing answers there.
        """
        return f"{redacted(uri)} has {many(len(cls.open(uri).sweeps()), 'sweep')}"


DATABASE = "mlflow.db"  # In the storage folder.
TRACKERS: Registry[TrackerKind] = Registry("tracker", "orchestrator.tracking._kinds", TrackerKind)


def tracker_kind(uri: str) -> type[TrackerKind]:
    """Return the kind of tracker at an address, of the installed plugins too."""
    scheme, separator, _ = uri.partition(":")
    kind = scheme.partition("+")[0]
    if separator and kind not in TRACKERS:
        from trainables.plugins import active_plugins, load_plugins  # They import PyTorch.

        if not active_plugins():
            load_plugins((), installed=True)
    if separator and kind in TRACKERS:
        return TRACKERS[kind]
    raise InputError(
        f"tracking uri {shown(uri)} is not supported (MLflow 3 has given up plain folders); "
        f"allowed: {ALLOWED}"
    )


def is_plugged(uri: str) -> bool:
    """Return True if a plugin brought the tracker at an address."""
    return TRACKERS.code(tracker_kind(uri).name) is not None


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
    return sqlite_uri(storage / DATABASE)


def sqlite_uri(file: Path) -> str:
    """Return the address of a SQLite file; a path may hold characters that an address escapes."""
    return f"{SQLITE}{str(file).translate(ESCAPED)}"


def sqlite_file(uri: str) -> Path | None:
    """Return the database file of a SQLite address, else None."""
    kind, separator, path = uri.partition(":///")
    return Path(unquote(path)) if separator and kind in ("sqlite", SQLITE_DRIVER) else None


def mlflow_uri(uri: str) -> str:
    """Return the address that MLflow opens for one of ours: it names the driver."""
    escaped = uri.startswith(SQLITE) and "%" in uri
    return uri.replace("sqlite", SQLITE_DRIVER, 1) if escaped else uri


def check_tracking_uri(uri: str) -> None:
    """Refuse a tracking address that a sweep cannot use, before anything starts."""
    tracker_kind(uri).check(uri)


def check_no_login(uri: str, place: str, setting: str) -> None:
    """Refuse a tracking address with a login in a ``place`` of plain text; name the ``setting``."""
    if redacted(uri) != uri:
        raise InputError(
            f"tracking.uri {shown(uri)}: its login or query would lie {place} in plain text; leave "
            "it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or PGPASSWORD, "
            f"{setting}"
        )
