"""From an address to what keeps the runs there, and whether it answers at all."""

import socket
from urllib.parse import urlsplit

from orchestrator.sweep.tracking_uri import (
    PORTS,
    check_tracking_uri,
    elsewhere,
    plugged_tracker,
    sqlite_file,
    tracked_folder,
)
from orchestrator.tracking.folder import FolderTracker, describe_folder
from orchestrator.tracking.mlflow.sqlite import describe_database, require_database
from orchestrator.tracking.tracker import LoginError, Tracker, UnreachableError
from trainables.common.addresses import redacted
from trainables.common.errors import InputError
from trainables.common.paths import SYNC


def open_tracker(uri: str, create: bool = False) -> Tracker:
    """Return what keeps the runs behind an address; see ``check_tracking_uri``.

    A file or folder that is not there is refused, unless it may be created.

    Raises:
        InputError: If the address cannot be used, or the store behind it cannot be opened.
    """
    check_tracking_uri(uri, written=create)
    if (plugged := plugged_tracker(uri)) is not None:
        tracker: Tracker = plugged(uri)
        return tracker
    folder, file = tracked_folder(uri), sqlite_file(uri)
    if folder is not None:
        if not create and not folder.is_dir():
            raise InputError(f"no tracking folder at {folder}; `{SYNC}` builds it")
        return FolderTracker(uri)
    if file is not None and not create:
        require_database(file, elsewhere(uri))
    from orchestrator.tracking.mlflow.server import MlflowTracker  # MLflow takes seconds.

    return MlflowTracker(uri)


def preload(uri: str) -> None:
    """Import what ``open_tracker`` needs for an address; whoever waits anyway has time for it."""
    if plugged_tracker(uri) is None and tracked_folder(uri) is None:
        import orchestrator.tracking.mlflow.server  # noqa: F401


def ping(uri: str, timeout: float = 5.0) -> tuple[bool, str]:
    """Return whether a tracker answers within ``timeout`` seconds, and one line of detail.

    That holds the remedy if it does not. A file or folder that does not exist yet is fine when it
    could be created; it is not created.
    """
    try:
        check_tracking_uri(uri)
        return True, _state(uri, timeout)
    except InputError as error:
        return False, str(error)


def check_login(uri: str, timeout: float = 5.0) -> None:
    """Refuse a login that the tracking server refuses.

    A server that gives no answer within ``timeout`` seconds may be away: its events wait in
    the journal.

    Raises:
        InputError: If the server asks for another user or password.
    """
    if urlsplit(uri).hostname and listens(uri):
        try:
            _state(uri, timeout)
        except UnreachableError as error:
            if isinstance(error, LoginError):
                raise


def listens(uri: str, timeout: float = 2.0) -> bool:
    """Return True if anything takes connections at an address; a file or a plugin always does.

    This costs no import of MLflow and says nothing of what answers there; ``ping`` does.
    """
    parts = urlsplit(uri)
    if parts.hostname is None or plugged_tracker(uri) is not None:
        return True
    port = parts.port or PORTS[parts.scheme.partition("+")[0]]
    try:
        socket.create_connection((parts.hostname, port), timeout).close()
    except OSError:
        return False
    return True


def _state(uri: str, timeout: float) -> str:
    """Return one line about the tracker behind an address, or raise an ``InputError``."""
    if plugged_tracker(uri) is not None:
        return f"{redacted(uri)} has {len(open_tracker(uri).sweeps())} sweeps"
    folder, file = tracked_folder(uri), sqlite_file(uri)
    if folder is not None:
        return describe_folder(folder)
    if file is not None:
        return describe_database(file)
    from orchestrator.tracking.mlflow.server import probe

    return probe(uri, timeout)
