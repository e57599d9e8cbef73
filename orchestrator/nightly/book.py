"""Store all nights of one benchmark in a folder or a bucket: figures, verdicts, changes."""

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from orchestrator.nightly.record import CellKey, NightRecord, Verdict
from orchestrator.storage.storage import answering, describe_process
from trainables.common.errors import InputError, StorageError
from trainables.common.files import LOCK_MODE, make_folders, write_whole, writing
from trainables.store.cache import Cache
from trainables.store.locks import Lease

FACTS, RECORD, VERDICT, DELIVERED = "night.json", "record.json", "verdict.json", "delivered.json"
TOLD = "told.json"
REPORTS = {"markdown": "report.md", "html": "report.html", "junit": "junit.xml"}
ACCEPTED = "accepted.jsonl"
FILES = {FACTS, RECORD, VERDICT, DELIVERED, TOLD, ACCEPTED, *REPORTS.values()}
"""Files on nights and accepted changes; all others are locks or computed artifacts."""

LOCK_SECONDS = 1.0  # Long enough for a run that is just ending to release the lock.
T = TypeVar("T")


class BusyError(InputError):
    """Another run of the same benchmark is active."""


@dataclass(frozen=True)
class Acceptance:
    """An intended change; ``night`` is the first of the new series.

    A ``cell`` without a metric covers all metrics of its recipe and task.
    """

    cell: CellKey
    night: str
    why: str
    time: str

    def line(self) -> str:
        """Return the change's line in ``accepted.jsonl``."""
        return json.dumps({**vars(self), "cell": str(self.cell)}) + "\n"


class Night:
    """The folder ``nightly/NAME/nights/NIGHT``; ``written`` is called with each written file."""

    def __init__(self, folder: Path, written: Callable[[Path], None] = lambda path: None) -> None:
        self.folder, self._on_write = folder, written

    @property
    def name(self) -> str:
        """Return the night's name, such as ``2026-11-21``."""
        return self.folder.name

    @property
    def facts(self) -> dict[str, Any]:
        """Return the content of ``night.json``, empty if the night has not started.

        Keys: ``number`` (rises in the order of running), ``started``, ``environment``, and
        ``given_up`` (the reason, only if the night was given up).
        """
        return self.read(FACTS) or {}

    @property
    def number(self) -> int:
        """Return the night's number in the order of running; 0 if it has not started."""
        return self._parsed(FACTS, lambda facts: int(facts["number"])) or 0

    @property
    def record(self) -> NightRecord | None:
        """Return the night's measurements, if any; raise ``InputError`` if the file is damaged."""
        return self._parsed(RECORD, NightRecord.from_json)

    @property
    def verdict(self) -> Verdict | None:
        """Return the night's verdict, if any; raise ``InputError`` if the file is damaged."""
        return self._parsed(VERDICT, Verdict.from_json)

    @property
    def unfinished(self) -> bool:
        """Return True if the night started, has no verdict and was not given up."""
        facts = self.facts
        return bool(facts) and "given_up" not in facts and not (self.folder / VERDICT).exists()

    @property
    def delivered(self) -> bool:
        """Return True if the tracking server is known to have the night's trials and verdict."""
        return (self.folder / DELIVERED).exists()

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the content of a JSON file of the night; see ``read_json``."""
        return read_json(self.folder / name)

    def _parsed(self, name: str, parse: Callable[[dict[str, Any]], T]) -> T | None:
        content = self.read(name)
        try:
            return None if content is None else parse(content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{self.folder / name} is damaged: {error!r}") from error

    def write(self, name: str, content: Mapping[str, Any] | str) -> None:
        """Write text, or a value as JSON, to a file of the night; see ``write_text``."""
        if not isinstance(content, str):
            content = json.dumps(content, indent=1, allow_nan=False)
        write_text(self.folder / name, content)
        self._on_write(self.folder / name)

    def shrink(self) -> list[Path]:
        """Remove artifacts and sweeps; return the folders that could not be removed."""
        folders = [self.folder / name for name in ("artifacts", "sweeps")]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return [folder for folder in folders if folder.exists()]


class Book:
    """The folder of all nights, ``STORAGE/nightly/NAME``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def held(self) -> Iterator[str]:
        """Lock all nights within the block.

        Yields:
            Description of the previous owner if it crashed, else an empty string.

        Raises:
            BusyError: If another process holds the lock.
            InputError: If the lock cannot be written.
        """
        path, owner = self.folder / "run.lock", self.folder / "owner"

        def named_owner() -> str:
            with suppress(FileNotFoundError):
                return owner.read_text(encoding="utf-8", errors="replace")
            return ""

        with ExitStack() as stack:
            try:
                make_folders(self.folder)
                stack.enter_context(FileLock(path, timeout=LOCK_SECONDS, mode=LOCK_MODE))
                crashed = named_owner()
                owner.write_text(f"process {os.getpid()} on {os.uname().nodename}", "utf-8")
            except Timeout as error:
                holder = named_owner() or "another process"
                raise BusyError(
                    f"another run is in progress: {holder} holds the lock {path}"
                ) from error
            except OSError as error:
                why = error.strerror or error
                raise InputError(f"lock {path} cannot be written: {why}") from error
            stack.callback(owner.unlink, missing_ok=True)
            yield crashed

    def written(self, path: Path) -> None:
        """Called when a file in the folder has been written."""

    def settle(self) -> None:
        """Wait for uploads, which only a ``BucketBook`` has."""

    def night(self, name: str) -> Night:
        """Return the night of this name, which need not have started."""
        return Night(self.folder / "nights" / name, self.written)

    def nights(self) -> list[Night]:
        """Return all nights that have started, in the order of running."""
        paths = (self.folder / "nights").glob(f"*/{FACTS}")
        return sorted((self.night(path.parent.name) for path in paths), key=lambda n: n.number)

    def write(self, name: str, text: str) -> None:
        """Write a file that belongs to the whole book; see ``write_text``."""
        write_text(self.folder / name, text)
        self.written(self.folder / name)

    def begin(self, name: str, started: float, environment: Mapping[str, str]) -> Night:
        """Start a night with the next number; a night that was started before keeps its number."""
        night = self.night(name)
        last = max((known.number for known in self.nights()), default=0)
        number = night.facts.get("number", last + 1)
        facts = {"number": number, "started": started, "environment": dict(environment)}
        night.write(FACTS, facts)
        return night

    def give_up(self, night: Night, why: str) -> None:
        """Record that a night will not get a verdict."""
        night.write(FACTS, {**night.facts, "given_up": why})

    def judged(self) -> list[tuple[NightRecord, Verdict]]:
        """Return record and verdict of every night that has both, in the order of running."""
        pairs = ((night.record, night.verdict) for night in self.nights())
        return [(r, v) for r, v in pairs if r is not None and v is not None]

    def restarts(self) -> dict[CellKey, str]:
        """Return, for each accepted cell, the night at which its series restarts."""
        path = self.folder / ACCEPTED
        if not path.exists():
            return {}
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            return {CellKey.parse(row["cell"]): row["night"] for row in rows}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {error}") from error

    def accept(self, entry: Acceptance) -> None:
        """Append an intended change to ``accepted.jsonl``."""
        path = self.folder / ACCEPTED
        with writing(path, StorageError):
            make_folders(path.parent)
            with FileLock(path.with_suffix(".moment"), mode=LOCK_MODE):
                before = path.read_text(encoding="utf-8") if path.exists() else ""
                write_whole(path, before + entry.line(), durable=True)

    def prune(self, keep: int) -> None:
        """Shrink the nights before the last ``keep``, if they are delivered or given up."""
        for night in self.nights()[:-keep]:
            if night.delivered or "given_up" in night.facts:
                night.shrink()


def write_text(path: Path, text: str) -> None:
    """Write a file atomically and flush it to disk."""
    with writing(path, StorageError):
        make_folders(path.parent)
        write_whole(path, text, durable=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, None if the file does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


log = logging.getLogger(__name__)
LAST_SECONDS = 30.0
"""How long a run waits for an unreachable bucket, at its start and at its end."""


class BucketBook(Book):
    """Nights in a bucket, which any machine can run and read; the folder is a local copy."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self._cache = Cache(folder.parents[1], address, log.warning)
        self._name = self._cache.name(folder)
        self._lease = Lease(
            self._cache.bucket, f"{self._name}/lock", describe_process(), patience=math.inf
        )

    def fetch(self) -> None:
        """Download the files that describe nights, if their size differs from the local copy's.

        Local files that wait for their upload are not replaced.
        """
        with answering():
            self._fetch()

    def _fetch(self) -> set[Path]:
        """Download as ``fetch`` does; return the local paths of all nightly files in the bucket."""
        entries = self._cache.bucket.listed(self._name)
        sizes = {self._cache.folder / entry.name: entry.bytes for entry in entries}
        # Compare sizes, not times: a longer file in the bucket may be as old as the copy.
        outdated = (
            path
            for path, size in sizes.items()
            if path.name in FILES
            and not self._cache.waits(path)
            and not (path.exists() and path.stat().st_size == size)
        )
        self._cache.each(self._cache.replace, outdated)
        return set(sizes)

    @contextmanager
    def held(self) -> Iterator[str]:
        """Lock all nights within the block.

        First upload waiting files and download files that differ. After the block, upload the rest.
        """
        with answering():
            self._lease.claim(lambda holder: BusyError(f"another run is in progress: {holder}"))
        with self._lease:
            try:
                with answering():
                    self._give_way()
                self._cache.deliver(LAST_SECONDS)
                with answering():
                    in_bucket = self._fetch()
                for path in {*(self.folder / "nights").glob("*/*")} - in_bucket:
                    if path.name in FILES:
                        self.written(path)  # A crash lost the request to upload it.
                yield ""
            finally:
                if left := self._cache.deliver(LAST_SECONDS):
                    log.warning(
                        "%d files are not in %s yet; the next start uploads them",
                        left,
                        self._cache.bucket.address,
                    )

    def _give_way(self) -> None:
        """Cancel uploads of nights that another machine has judged meanwhile."""
        for verdict in self.folder.glob(f"nights/*/{VERDICT}"):
            if not self._cache.waits(verdict):
                continue
            other = self._cache.bucket.get(self._cache.name(verdict))
            if other is not None and other.content != verdict.read_bytes():
                log.warning(
                    "night %s: another machine has run it too; its files are used",
                    verdict.parent.name,
                )
                for name in FILES:
                    self._cache.forget(verdict.parent / name)

    def written(self, path: Path) -> None:
        """Queue a file for upload; raise ``BusyError`` if another process took over the lock."""
        if self._lease.lost:
            raise BusyError(f"{self._lease.holder()} has taken over the nights; this run stops")
        try:
            self._cache.promise(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be uploaded: {error.strerror or error}") from error
        self._cache.keep(path)

    def settle(self) -> None:
        """Wait until all files are uploaded or the bucket does not answer, at most 30 seconds."""
        self._cache.settle(LAST_SECONDS)

    def accept(self, entry: Acceptance) -> None:
        """Append an intended change to the bucket's ``accepted.jsonl``; update the local copy."""
        path = self.folder / ACCEPTED
        bucket, name = self._cache.bucket, self._cache.name(path)
        with answering():
            added = None
            while added is None:  # Another process may append at the same time.
                found = bucket.get(name)
                content = (found.content if found else b"") + entry.line().encode()
                if found:
                    added = bucket.replace(name, content, found.tag)
                else:
                    added = bucket.create(name, content)
        write_text(path, content.decode())
