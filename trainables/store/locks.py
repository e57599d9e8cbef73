import os
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from trainables.common.pulse import beat
from trainables.common.sharing import LOCK_MODE, permitted

# Silence after which a holder counts as stopped: a scheduler may have ended its trial, and its
# process keeps the lock until it is given another.
PATIENCE_SECONDS = 600.0
LOOK_SECONDS = 1.0  # Between two signs of life while a process waits for its turn.


class ArtifactLock(AbstractContextManager["ArtifactLock"]):
    """The lock of the process that computes an artifact, on a file that every node sees.

    As a context manager it waits for its turn. A holder that dies releases it; one that only falls
    silent is passed over, since to compute a stage twice is a waste, but to wait for good a
    deadlock.
    """

    def __init__(self, path: Path) -> None:
        with permitted():
            path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = FileLock(path, mode=LOCK_MODE)

    @permitted()
    def take(self) -> bool:
        """Return True if the artifact may be computed here, False while another process does."""
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return time.time() - os.stat(self.path).st_mtime > PATIENCE_SECONDS
        self.keep()
        return True

    def keep(self) -> None:
        """Give a sign of life, if the lock is held."""
        if self._lock.is_locked:
            os.utime(self.path)

    def release(self) -> None:
        """Pass the lock on; harmless if it is not held."""
        self._lock.release()

    @permitted()
    def __enter__(self) -> "ArtifactLock":
        """Wait for the lock."""
        while True:
            beat()
            with suppress(Timeout):
                self._lock.acquire(timeout=LOOK_SECONDS)
                return self

    def __exit__(self, *_: object) -> None:
        """Pass it on."""
        self.release()
