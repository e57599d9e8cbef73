"""A journal that is sealed in a bucket while it is written."""

import threading
import time
from contextlib import suppress
from pathlib import Path

from orchestrator.storage.bucket_sweep import BucketSweep
from orchestrator.storage.events import Event
from orchestrator.storage.journal import Journal
from trainables.common.errors import AwayError, InputError, StorageError
from trainables.store.locks import Lease

SEAL_SECONDS = 3.0
"""Seconds between two segments."""

LAST_SECONDS = 30.0
"""Seconds for which the last segment is offered to a bucket that is away."""


class BucketJournal(Journal):
    """Writes a journal, and every few seconds seals the new lines as the next segment.

    A bucket that is away ends nothing: what it lacks comes with the next segment that it takes.

    Args:
        path: The journal in the local copy, as ``BucketSweep.fetch`` left it.
        sweep: Where it is sealed.
        lease: The lock that this process holds.

    Raises:
        InputError: See ``Journal``; from ``append`` also if another driver has taken the sweep
            over, or the bucket refuses a segment.
    """

    def __init__(self, path: Path, sweep: BucketSweep, lease: Lease) -> None:
        super().__init__(path)
        self._sweep, self._lease = sweep, lease
        known = sweep.segments()
        self._count, self._sealed = len(known), sum(found.stat().st_size for found in known)
        self._refusal = ""
        self._sealing, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._seal_often, daemon=True)
        self._thread.start()

    def append(self, event: Event, durable: bool = True) -> None:
        if self._lease.lost:
            self._refuse()
        if self._refusal:
            raise InputError(self._refusal)
        super().append(event, durable)

    def delivered(self) -> bool:
        """Return True once the bucket has all that was written; False if it is away for long."""
        end = time.monotonic() + LAST_SECONDS
        while self._sealed < self._end and not self._refusal:
            try:
                self._seal()
            except AwayError:
                if time.monotonic() > end:
                    return False
                time.sleep(1.0)
        return not self._refusal

    def close(self) -> None:
        """Stop sealing and close; harmless when closed already."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
        super().close()

    def _seal_often(self) -> None:
        while not self._over.wait(SEAL_SECONDS):
            with suppress(AwayError):
                try:
                    self._seal()
                except StorageError as error:
                    self._refusal = str(error)

    def _seal(self) -> None:
        """Write the lines not sealed yet as the next segment, if any."""
        with self._sealing:
            with self._lock:
                end = self._end
            if end == self._sealed or self._refusal:
                return
            with self.path.open("rb") as stream:
                stream.seek(self._sealed)
                lines = stream.read(end - self._sealed)
            place = self._sweep.segment(self._count + 1)
            name = self._sweep.object_of(place)
            if self._sweep.bucket.create(name, lines) is None:
                found = self._sweep.bucket.get(name)
                if found is None or not lines.startswith(found.content):
                    self._refuse()
                    return
                lines = found.content  # Of an attempt of ours whose answer was lost.
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(lines)
            self._count, self._sealed = self._count + 1, self._sealed + len(lines)

    def _refuse(self) -> None:
        self._refusal = (
            f"sweep {self.path.parent.name!r} was taken over by {self._sweep.lease().holder()}; "
            "this run ends"
        )
