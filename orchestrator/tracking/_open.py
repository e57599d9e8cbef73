"""From an address to the tracker that keeps the runs there, and whether it answers."""

from urllib.parse import urlsplit

from orchestrator.sweep.tracking_uri import check_tracking_uri, tracker_kind
from orchestrator.tracking.tracker import LoginError, Tracker, UnreachableError
from trainables.common.errors import InputError


def open_tracker(uri: str, create: bool = False) -> Tracker:
    """Return the tracker at an address; see ``check_tracking_uri``.

    A file that is not there is refused, unless it may be created.

    Raises:
        InputError: If the address cannot be used, or the store behind it cannot be opened.
    """
    tracker: Tracker = tracker_kind(uri).open(uri, create)
    return tracker


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

    Raises:
        InputError: If the server asks for another user or password.
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
