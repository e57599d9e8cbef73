"""All sweeps of a storage."""

from collections.abc import Callable
from threading import Lock

from orchestrator.report import CURVES
from orchestrator.storage.following import FollowedSweep
from orchestrator.storage.storage import Storage


class Book:
    """The sweeps of a storage by name, those that come later too.

    Raises:
        InputError: If the storage has no folder of sweeps.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, Lock()
        self._known: dict[str, FollowedSweep] = {}
        self.sweeps()

    def sweeps(self) -> dict[str, FollowedSweep]:
        """Return the sweeps that there are now."""
        folders = self._storage.sweeps()
        with self._lock:
            self._known = {
                folder.name: self._known.get(folder.name) or FollowedSweep(folder, CURVES)
                for folder in folders
            }
            return dict(self._known)

    def read_on(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Read all journals as far as they go; ``progress`` hears of those read, and of all."""
        found = self.sweeps()
        for count, sweep in enumerate(found.values(), 1):
            sweep.read_on()
            progress(count, len(found))
