"""All nights of a benchmark whose storage lies in a bucket."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.nightly.book import (
    ACCEPTED,
    FILES,
    VERDICT,
    Acceptance,
    Book,
    BusyError,
    write_text,
)
from orchestrator.storage.storage import answering, describe_process
from trainables.common.errors import StorageError
from trainables.store.cache import Cache
from trainables.store.locks import Lease

log = logging.getLogger(__name__)
LAST_SECONDS = 30.0
"""For how long a start waits for a bucket that is away, at its beginning and its end."""


class BucketBook(Book):
    """Nights that any machine runs and reads: their files lie in a bucket, the folder is a copy.

    Files are sent behind the caller's back, and before the lock is passed on; what a bucket that is
    away does not take, the next start on this machine sends. What a night computes is not sent.

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
        self._lease = Lease(
            self._cache.bucket, f"{self._name}/lock", describe_process(), patience=math.inf
        )

    def fetch(self) -> None:
        """Take what the bucket has and this machine has not.

        Raises:
            InputError: If the bucket does not answer.
        """
        with answering():
            self._fetch()

    def _fetch(self) -> set[Path]:
        """Do so; return where all that the bucket has lies here."""
        found = self._cache.bucket.listed(self._name)
        sizes = {self._cache.folder / one.name: one.bytes for one in found}
        # By size, not by time: a file that was added to elsewhere may be as old as the one here.
        lacking = (
            path
            for path, size in sizes.items()
            if path.name in FILES
            and not self._cache.waits(path)
            and not (path.exists() and path.stat().st_size == size)
        )
        self._cache.each(self._cache.replace, lacking)
        return set(sizes)

    @contextmanager
    def held(self) -> Iterator[str]:
        """Own all nights within the block; before, the folder and the bucket agree.

        Raises:
            BusyError: If another process does.
            InputError: If the bucket does not answer, or refuses a file.
        """
        with answering():
            self._lease.claim(lambda holder: BusyError(f"another run is under way: by {holder}"))
        with self._lease:
            try:
                with answering():
                    self._give_way()
                self._cache.deliver(LAST_SECONDS)
                with answering():
                    there = self._fetch()
                for path in {*(self.folder / "nights").glob("*/*")} - there:
                    if path.name in FILES:
                        self.written(path)  # Its note was lost in a crash.
                yield ""
            finally:
                if left := self._cache.deliver(LAST_SECONDS):
                    log.warning("%d files wait here for %s", left, self._cache.bucket.address)

    def _give_way(self) -> None:
        """Forget what waits of a night that another machine has judged meanwhile."""
        for verdict in self.folder.glob(f"nights/*/{VERDICT}"):
            if not self._cache.waits(verdict):
                continue
            there = self._cache.bucket.get(self._cache.name(verdict))
            if there is not None and there.content != verdict.read_bytes():
                log.warning("night %s: another machine has run it too", verdict.parent.name)
                for name in FILES:
                    self._cache.forget(verdict.parent / name)

    def written(self, path: Path) -> None:
        """Send a file.

        Raises:
            BusyError: If another process has taken the nights over.
            StorageError: If it cannot be noted.
        """
        if self._lease.lost:
            raise BusyError(f"the nights were taken over by {self._lease.holder()}; this run stops")
        try:
            self._cache.promise(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be sent: {error.strerror or error}") from error
        self._cache.keep(path)

    def settle(self) -> None:
        """Wait until all is sent, or the bucket is away.

        Raises:
            StorageError: If the bucket refuses it.
        """
        self._cache.settle(LAST_SECONDS)

    def accept(self, entry: Acceptance) -> None:
        """Add a line to the accepted changes there, then here.

        Raises:
            InputError: If the bucket does not answer, or the file cannot be written.
        """
        path = self.folder / ACCEPTED
        bucket, name = self._cache.bucket, self._cache.name(path)
        with answering():
            added = None
            while added is None:  # Somebody else may add a line at once.
                found = bucket.get(name)
                content = (found.content if found else b"") + entry.line().encode()
                if found:
                    added = bucket.replace(name, content, found.tag)
                else:
                    added = bucket.create(name, content)
        write_text(path, content.decode())
