"""A sweep whose storage lies in a bucket: its lease, its journal in sealed segments, its files."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.storage.events import Event
from orchestrator.storage.journal import Journal
from trainables.common.errors import AwayError, InputError, StorageError
from trainables.store.cache import Cache
from trainables.store.locks import Lease

SPEC, NOTES = "sweep.yaml", "notes.json"
SHARED = (SPEC, "report.html", "chosen", "logs", "plots")
"""What of a sweep's folder is for other machines too, beside its tables; never a token."""

logger = logging.getLogger(__name__)


class BucketSweep:
    """The parts of one sweep in a bucket; the journal is in numbered segments, written once."""

    def __init__(self, path: Path, address: str) -> None:
        self._path, self._sealed = path, path / "journal"
        self._cache = Cache(path.parents[1], address, lambda text: None)
        self.name = self._cache.name(path)
        self.bucket = self._cache.bucket

    def lease(self, who: str = "") -> Lease:
        """Return the lock of whoever runs the sweep."""
        return Lease(self.bucket, f"{self.name}/lease", who)

    @contextmanager
    def held(self, who: str) -> Iterator[Lease]:
        """Hold the lease within the block, and bring the local copy up to date."""
        lease = self.lease(who)
        lease.claim(lambda by: InputError(f"sweep {self._path.name!r} is being run by {by}"))
        try:
            self.fetch()
            yield lease
        finally:
            lease.release()

    def control(self) -> str:
        """Return ``pause``, ``cancel`` or nothing, as a user asks."""
        found = self.bucket.get(f"{self.name}/control")
        return found.content.decode() if found else ""

    def set_control(self, wanted: str) -> None:
        """Write what a person wants; raises as ``control`` does."""
        if wanted:
            self.bucket.put(f"{self.name}/control", wanted.encode())
        else:
            self.bucket.remove(f"{self.name}/control")

    def put(self, path: Path) -> None:
        """Write a file of the sweep; raises as ``control`` does."""
        self.bucket.put(self._cache.name(path), path)

    def fetch(self, files: bool = False) -> None:
        """Bring the local copy of the sweep's specification, notes and journal up to date.

        Its other ``files``, logs and diagrams, are many: they come when asked for.

        A local journal that has more stays: the next run seals it. One that differs, since another
        machine went on without it, is put aside.

        Raises:
            AwayError: If the bucket does not answer.
        """
        names = self.bucket.names(self.name)
        places = [self._cache.folder / name for name in names]
        own = [place.relative_to(self._path) for place in places]
        wanted = (
            place
            for place, inside in zip(places, own, strict=True)
            if inside.name in (SPEC, NOTES)
            or (files and _is_shared(inside))
            or (inside.parts[0] == "journal" and not place.exists())
        )
        self._cache.each(self._cache.fetch, wanted)
        if any(inside.parts[0] == "journal" for inside in own):
            self._join()

    def segments(self) -> list[Path]:
        """Return the segments of the journal that are known here, in order."""
        return sorted(self._sealed.glob("[0-9]*"))

    def segment(self, number: int) -> Path:
        """Return where a segment lies in the local copy, numbered from 1."""
        return self._sealed / f"{number:08d}"

    def object_of(self, path: Path) -> str:
        """Return the name of a file's object."""
        return self._cache.name(path)

    def _join(self) -> None:
        sealed = b"".join(segment.read_bytes() for segment in self.segments())
        journal = self._path / "journal.jsonl"
        local = journal.read_bytes() if journal.exists() else b""
        if local.startswith(sealed):
            return
        if not sealed.startswith(local):
            journal.replace(self._path / f"journal.replaced-{time.time_ns()}.jsonl")
        draft = journal.with_suffix(".tmp")
        draft.write_bytes(sealed)
        draft.replace(journal)

    def share(self, again: bool = False) -> int:
        """Send files that the bucket lacks, tables and report anyway; return how many remain."""
        try:
            there = set(self.bucket.names(self.name))
        except AwayError:
            there = set()
        for path in self._path.rglob("*"):
            inside = path.relative_to(self._path)
            if path.is_file() and _is_shared(inside):
                if not self._is_public(path):
                    logger.warning("%s is not sent: it links to a file that may be private", path)
                    continue
                fresh = inside.name.startswith(("table.", "report."))
                if fresh or self._cache.name(path) not in there:
                    self._cache.keep(path)
        return self._cache.deliver()

    def _is_public(self, path: Path) -> bool:
        """Return True if the file that a path leads to is for other machines too."""
        real, folder = path.resolve(), self._path.resolve()
        return real.is_relative_to(folder) and _is_shared(real.relative_to(folder))


def _is_shared(inside: Path) -> bool:
    """Return True if a file, by its path in the sweep's folder, is for other machines too."""
    return inside.parts[0] in SHARED or inside.name.startswith("table.")


SEAL_SECONDS = 3.0
"""Seconds between two segments."""

LAST_SECONDS = 30.0
"""Seconds for which the last segment is offered to a bucket that is away."""


class BucketJournal(Journal):
    """Writes a journal, and every few seconds seals the new lines as a segment in the bucket."""

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
