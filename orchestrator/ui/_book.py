"""All sweeps of a storage."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from orchestrator.report import CURVES
from orchestrator.storage.following import FollowedSweep
from orchestrator.storage.storage import Storage, SweepFolder


class Book:
    """The sweeps of a storage by name, those that come later too.

    A sweep is left out if its folder or journal leads out of the storage, or if one of its small
    files is a link, a pipe or a device.

    Attributes:
        folder: The storage's folder.
        outside: Names of the sweeps that are left out.

    Raises:
        InputError: If the storage has no folder of sweeps.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, Lock()
        self._known: dict[str, FollowedSweep] = {}
        self.folder, self.outside = storage.folder, list[str]()
        self.sweeps()

    def sweeps(self) -> dict[str, FollowedSweep]:
        """Return the sweeps that there are now."""
        folders, outside = list[SweepFolder](), list[SweepFolder]()
        for sweep in self._storage.sweeps():
            (folders if self._inside(sweep) else outside).append(sweep)
        with self._lock:
            self.outside = [sweep.name for sweep in outside]
            self._known = {
                folder.name: self._known.get(folder.name) or FollowedSweep(folder, CURVES)
                for folder in folders
            }
            return dict(self._known)

    def _inside(self, sweep: SweepFolder) -> bool:
        real, own = sweep.journal.resolve(), sweep.state_files
        inside = real.is_relative_to(self.folder.resolve()) and not any(map(Path.is_symlink, own))
        return inside and all(path.is_file() or not path.exists() for path in (real, *own))

    def read_on(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Read all journals as far as they go; ``progress`` hears of those read, and of all."""
        found = self.sweeps()
        for count, sweep in enumerate(found.values(), 1):
            sweep.read_on()
            progress(count, len(found))
