"""All nights of a benchmark whose storage lies in a bucket."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.nightly.book import (
    ACCEPTED,
    BISECTION,
    DELIVERED,
    FACTS,
    RECORD,
    REPORTS,
    TOLD,
    VERDICT,
    Acceptance,
    Book,
)
from orchestrator.nightly.lock import BusyError
from orchestrator.storage.storage import answering, describe_process
from trainables.common.errors import InputError, StorageError
from trainables.store.cache import Cache
from trainables.store.leases import BEAT_SECONDS, LOOK_SECONDS, Lease

log = logging.getLogger(__name__)
SHARED = {FACTS, RECORD, VERDICT, DELIVERED, BISECTION, TOLD, ACCEPTED, *REPORTS.values()}
"""Names of the files that the bucket has; what a night computes stays on its machine."""
LAST_SECONDS = 30.0
"""For how long a start that ends waits for a bucket that is away."""


class BucketBook(Book):
    """Nights that any machine runs and reads: their files lie in a bucket, the folder is a copy.

    Files are sent behind the caller's back, and before the lock is passed on; what a bucket that is
    away does not take, the next start on this machine sends.

    Args:
        folder: ``nightly/NAME`` in the local copy of the storage.
        address: Of the bucket.

    Raises:
        InputError: See ``Bucket``.
    """

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self._cache = Cache(folder.parents[1], address, log.warning)
        self._name = self._cache.name(folder)

    def fetch(self) -> None:
        """Take what the bucket has and this machine has not; note what it lacks.

        Raises:
            InputError: If the bucket does not answer.
        """
        with answering():
            sizes = {one.name: one.bytes for one in self._cache.bucket.listed(self._name)}
            there = {self._cache.folder / name: size for name, size in sizes.items()}
            self._cache.fetch_all(
                path
                for path, size in there.items()
                if path.name in SHARED
                and not self._cache.waits(path)
                and not (path.exists() and path.stat().st_size == size)
            )
        for path in (self.folder / "nights").glob("*/*"):
            if path.name in SHARED and path not in there:
                self.written(path)

    @contextmanager
    def held(self) -> Iterator[str]:
        """Own all nights within the block, and bring the folder up to date before.

        Raises:
            BusyError: If another process does.
            InputError: If the bucket does not answer.
        """
        lease, over = Lease(self._cache.bucket, f"{self._name}/lock", describe_process()), False
        with answering():
            while not lease.take():
                if lease.alive:
                    raise BusyError(f"another run is going on: by {lease.holder()}")
                time.sleep(LOOK_SECONDS)

        def keep() -> None:
            while not over:
                lease.keep()
                time.sleep(BEAT_SECONDS)

        threading.Thread(target=keep, daemon=True).start()
        try:
            self._deliver()
            self.fetch()
            yield ""
        finally:
            over = True
            self._deliver()
            lease.release()

    def _deliver(self) -> None:
        """Send what waits, or warn: the verdict stands, and the next start sends it."""
        address = self._cache.bucket.address
        try:
            if left := self._cache.deliver(LAST_SECONDS):
                log.warning("%d files wait here for %s", left, address)
        except (OSError, InputError) as error:
            log.warning("files wait here for %s: %s", address, error)

    def written(self, path: Path) -> None:
        """Send a file.

        Raises:
            StorageError: If it cannot be noted.
        """
        try:
            self._cache.promise(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be sent: {error.strerror or error}") from error
        self._cache.keep(path)

    def accept(self, entry: Acceptance) -> None:
        """Add a line to the accepted changes, there and here.

        Raises:
            InputError: If the bucket does not answer, or the file cannot be written.
        """
        path, who = self.folder / ACCEPTED, describe_process()
        with answering(), Lease(self._cache.bucket, f"{self._name}/accepting", who):
            self.fetch()
            super().accept(entry)
            self._cache.bucket.put(self._cache.name(path), path)
