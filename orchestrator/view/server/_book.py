"""The sweeps of a storage, followed while they run."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from orchestrator.cluster.slurm_queue import Job, find_jobs, with_job
from orchestrator.storage.ledger import FollowedSweep
from orchestrator.storage.status import SweepStatus
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.view import CURVES
from trainables.common.errors import InputError

JOB_SECONDS = 10.0  # Time between two queries to SLURM.


class Book:
    """The sweeps of a storage by name, including sweeps that start later.

    A sweep is excluded if its folder or journal is a link out of the storage, if one of its state
    files is a link, or if its journal or a state file exists but is not a regular file.

    Attributes:
        folder: The storage's folder.
        outside: Names of excluded sweeps.
        note: Why states of SLURM jobs may be old; else empty.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage, self._lock = storage, Lock()
        self._known: dict[str, FollowedSweep] = {}
        self.folder, self.outside = storage.folder, list[str]()
        self._jobs, self._queried, self.note = dict[str, Job](), -JOB_SECONDS, ""
        self.sweeps()

    def sweeps(self) -> dict[str, FollowedSweep]:
        """Return the storage's current sweeps by name, without excluded ones."""
        folders, outside = list[SweepFolder](), list[SweepFolder]()
        for sweep in self.storage.sweeps():
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

    def with_job(self, status: SweepStatus) -> SweepStatus:
        """Return the status of a sweep with its SLURM job; see ``slurm_queue.with_job``."""
        return with_job(status, self.storage.sweep(status.sweep), self._jobs.get(status.sweep))

    def ask_slurm(self) -> None:
        """Query SLURM for the sweeps' jobs, at most every ``JOB_SECONDS``."""
        if time.monotonic() - self._queried < JOB_SECONDS:
            return
        try:
            self._jobs, self.note = find_jobs(each.folder for each in self.sweeps().values())
        except InputError as error:  # The number of a job is damaged.
            self.note = str(error)
        self._queried = time.monotonic()

    def read_on(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Read the new events of all journals and the states of SLURM jobs.

        ``progress`` is called with the number of journals read so far and the total.
        """
        self.ask_slurm()
        found = self.sweeps()
        for count, sweep in enumerate(found.values(), 1):
            sweep.read_on()
            progress(count, len(found))
