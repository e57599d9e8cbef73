"""Store a sweep in a bucket: its lock, the segments of its journal, and its files."""

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
"""Files and folders that ``share`` uploads, besides tables; they have no secrets."""

logger = logging.getLogger(__name__)


class BucketSweep:
    """One sweep in a bucket; its journal consists of numbered segments that never change."""

    def __init__(self, path: Path, address: str) -> None:
        self._path, self._sealed = path, path / "journal"
        self._cache = Cache(path.parents[1], address, lambda text: None)
        self.name = self._cache.name(path)
        self.bucket = self._cache.bucket

    def lease(self, who: str = "") -> Lease:
        """Return the lock of the process that runs the sweep."""
        return Lease(self.bucket, f"{self.name}/lease", who)

    @contextmanager
    def held(self, who: str) -> Iterator[Lease]:
        """Hold the lock within the block, and update the local copy."""
        lease = self.lease(who)
        lease.claim(lambda by: InputError(f"sweep {self._path.name!r} is being run by {by}"))
        try:
            self.fetch()
            yield lease
        finally:
            lease.release()

    def control(self) -> str:
        """Return the user's request: ``pause``, ``cancel`` or ""."""
        request = self.bucket.get(f"{self.name}/control")
        return request.content.decode() if request else ""

    def set_control(self, wanted: str) -> None:
        """Write the user's request."""
        if wanted:
            self.bucket.put(f"{self.name}/control", wanted.encode())
        else:
            self.bucket.remove(f"{self.name}/control")

    def put(self, path: Path) -> None:
        """Upload a file of the sweep."""
        self.bucket.put(self._cache.name(path), path)

    def fetch(self, files: bool = False) -> None:
        """Update the local copy of the sweep's specification, notes and journal.

        With ``files``, the other files (report, logs, diagrams) are downloaded as well. A longer
        local journal is kept, and the next run uploads the rest. A local journal that differs,
        because another machine resumed the sweep without its last lines, is renamed.

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
        """Return the local segments of the journal, in order."""
        return sorted(self._sealed.glob("[0-9]*"))

    def segment(self, number: int) -> Path:
        """Return the local path of a segment, numbered from 1."""
        return self._sealed / f"{number:08d}"

    def object_of(self, path: Path) -> str:
        """Return the name of a local file in the bucket."""
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

    def share(self) -> int:
        """Upload missing files, and always table and report; return how many files still wait."""
        try:
            uploaded = set(self.bucket.names(self.name))
        except AwayError:
            uploaded = set()
        for path in self._path.rglob("*"):
            inside = path.relative_to(self._path)
            if path.is_file() and _is_shared(inside):
                if not self._is_public(path):
                    logger.warning("%s is not uploaded: it links to a file outside the sweep", path)
                    continue
                changes = inside.name.startswith(("table.", "report."))
                if changes or self._cache.name(path) not in uploaded:
                    self._cache.keep(path)
        return self._cache.deliver()

    def _is_public(self, path: Path) -> bool:
        """Return True if the file that a path leads to, through links, may also be uploaded."""
        real, folder = path.resolve(), self._path.resolve()
        return real.is_relative_to(folder) and _is_shared(real.relative_to(folder))


def _is_shared(inside: Path) -> bool:
    """Return True if a file, by its path in the sweep's folder, may be uploaded."""
    return inside.parts[0] in SHARED or inside.name.startswith("table.")


SEAL_SECONDS = 3.0
"""Seconds between two segments."""

LAST_SECONDS = 30.0
"""How long the upload of the last segment is retried."""


class BucketJournal(Journal):
    """Writes a journal, and every few seconds uploads the new lines as a segment."""

    def __init__(self, path: Path, sweep: BucketSweep, lease: Lease) -> None:
        super().__init__(path)
        self._sweep, self._lease = sweep, lease
        segments = sweep.segments()
        self._count, self._sealed = len(segments), sum(path.stat().st_size for path in segments)
        self._refusal = ""
        self._sealing, self._closing = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._seal_often, daemon=True)
        self._thread.start()

    def append(self, event: Event, durable: bool = True) -> None:
        if self._lease.lost:
            self._refuse()
        if self._refusal:
            raise InputError(self._refusal)
        super().append(event, durable)

    def delivered(self) -> bool:
        """Return True once the bucket has all lines.

        Return False after ``LAST_SECONDS`` without an answer, if an upload was refused, or if
        another run took over.
        """
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
        """Stop uploading and close; may be called again."""
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join()
        super().close()

    def _seal_often(self) -> None:
        while not self._closing.wait(SEAL_SECONDS):
            with suppress(AwayError):
                try:
                    self._seal()
                except StorageError as error:
                    self._refusal = str(error)

    def _seal(self) -> None:
        """Upload the new lines, if any, as the next segment."""
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
                existing = self._sweep.bucket.get(name)
                if existing is None or not lines.startswith(existing.content):
                    self._refuse()
                    return
                lines = existing.content  # Our own earlier upload, whose answer was lost.
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(lines)
            self._count, self._sealed = self._count + 1, self._sealed + len(lines)

    def _refuse(self) -> None:
        self._refusal = (
            f"sweep {self.path.parent.name!r} was taken over by {self._sweep.lease().holder()}; "
            "this run ends"
        )
