"""All nights of one benchmark, in a folder or a bucket: figures, verdicts, accepted nights."""

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
"""Names of the files that tell of nights; the rest is what a night computes."""

LOCK_SECONDS = 1.0  # Whoever is about to end keeps a start waiting, not away.
T = TypeVar("T")


class BusyError(InputError):
    """Another run of the same benchmark is under way."""


@dataclass(frozen=True)
class Acceptance:
    """A change that somebody intended; ``cell`` without a metric is all of its pair."""

    cell: CellKey
    night: str
    why: str
    time: str

    def line(self) -> str:
        """Return it as a line of the file of accepted changes."""
        return json.dumps({**vars(self), "cell": str(self.cell)}) + "\n"


class Night:
    """The folder ``nightly/NAME/nights/NIGHT``; ``written`` is called with each new file."""

    def __init__(self, folder: Path, written: Callable[[Path], None] = lambda path: None) -> None:
        self.folder, self._written = folder, written

    @property
    def name(self) -> str:
        """Return the night's name, such as ``2026-11-21``."""
        return self.folder.name

    @property
    def facts(self) -> dict[str, Any]:
        """Return all that is known since its beginning, or nothing if it has not begun.

        ``number`` (rising in the order of running), ``started``, ``environment``, and ``given_up``
        (why, if it was).
        """
        return self.read(FACTS) or {}

    @property
    def number(self) -> int:
        """Return its place in the order of running; 0 if it has not begun."""
        return self._parsed(FACTS, lambda facts: int(facts["number"])) or 0

    @property
    def record(self) -> NightRecord | None:
        """Return what it measured, once it has; raise ``InputError`` if the file is damaged."""
        return self._parsed(RECORD, NightRecord.from_json)

    @property
    def verdict(self) -> Verdict | None:
        """Return what it came to, once judged; raise ``InputError`` if the file is damaged."""
        return self._parsed(VERDICT, Verdict.from_json)

    @property
    def unfinished(self) -> bool:
        """Return True if it began, has no verdict, and was not given up."""
        facts = self.facts
        return bool(facts) and "given_up" not in facts and not (self.folder / VERDICT).exists()

    @property
    def delivered(self) -> bool:
        """Return True if the tracking server has its verdict."""
        return (self.folder / DELIVERED).exists()

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what one of its files holds; see ``read_json``."""
        return read_json(self.folder / name)

    def _parsed(self, name: str, parse: Callable[[dict[str, Any]], T]) -> T | None:
        content = self.read(name)
        try:
            return None if content is None else parse(content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{self.folder / name} is damaged: {error!r}") from error

    def write(self, name: str, content: Mapping[str, Any] | str) -> None:
        """Write one of its files, text or a value for JSON; see ``write_text``."""
        if not isinstance(content, str):
            content = json.dumps(content, indent=1, allow_nan=False)
        write_text(self.folder / name, content)
        self._written(self.folder / name)

    def shrink(self) -> list[Path]:
        """Remove everything but what later nights and readers need; return what stayed."""
        parts = [self.folder / part for part in ("artifacts", "sweeps")]
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)
        return [part for part in parts if part.exists()]


class Book:
    """The folder of all nights, ``STORAGE/nightly/NAME``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def held(self) -> Iterator[str]:
        """Own all nights within the block, or refuse.

        Yields:
            Whom they were taken over from, for a person to read; empty if that one ended in order.

        Raises:
            BusyError: If another process holds them.
        """
        path, owner = self.folder / "run.lock", self.folder / "owner"

        def named() -> str:
            with suppress(FileNotFoundError):
                return owner.read_text(encoding="utf-8", errors="replace")
            return ""

        with ExitStack() as stack:
            try:
                make_folders(self.folder)
                stack.enter_context(FileLock(path, timeout=LOCK_SECONDS, mode=LOCK_MODE))
                gone = named()
                owner.write_text(f"process {os.getpid()} on {os.uname().nodename}", "utf-8")
            except Timeout as error:
                holder = named() or "another process"
                raise BusyError(f"another run is under way: {holder} holds {path}") from error
            except OSError as error:
                why = error.strerror or error
                raise InputError(f"lock {path} cannot be written: {why}") from error
            stack.callback(owner.unlink, missing_ok=True)
            yield gone

    def written(self, path: Path) -> None:
        """Hear of a file in the folder that was written."""

    def settle(self) -> None:
        """Wait until all writes are where all nights lie; see ``BucketBook``."""

    def night(self, name: str) -> Night:
        """Return a night by its name, begun or not."""
        return Night(self.folder / "nights" / name, self.written)

    def nights(self) -> list[Night]:
        """Return the nights that began, in the order in which they did, whatever the clock said."""
        paths = (self.folder / "nights").glob(f"*/{FACTS}")
        return sorted((self.night(path.parent.name) for path in paths), key=lambda n: n.number)

    def write(self, name: str, text: str) -> None:
        """Write a file of no night; see ``write_text``."""
        write_text(self.folder / name, text)
        self.written(self.folder / name)

    def begin(self, name: str, started: float, environment: Mapping[str, str]) -> Night:
        """Open a night, with the next number; one that is open keeps its number."""
        night = self.night(name)
        last = max((known.number for known in self.nights()), default=0)
        number = night.facts.get("number", last + 1)
        facts = {"number": number, "started": started, "environment": dict(environment)}
        night.write(FACTS, facts)
        return night

    def give_up(self, night: Night, why: str) -> None:
        """Note that a night will get no verdict."""
        night.write(FACTS, {**night.facts, "given_up": why})

    def judged(self) -> list[tuple[NightRecord, Verdict]]:
        """Return record and verdict of every night that has both, in the order of running."""
        pairs = ((night.record, night.verdict) for night in self.nights())
        return [(r, v) for r, v in pairs if r is not None and v is not None]

    def restarts(self) -> dict[CellKey, str]:
        """Return the night from which on each accepted cell's series starts anew."""
        path = self.folder / ACCEPTED
        if not path.exists():
            return {}
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            return {CellKey.parse(row["cell"]): row["night"] for row in rows}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {error}") from error

    def accept(self, entry: Acceptance) -> None:
        """Add a line to the accepted changes; nothing is ever taken out."""
        path = self.folder / ACCEPTED
        with writing(path, StorageError):
            make_folders(path.parent)
            with FileLock(path.with_suffix(".moment"), mode=LOCK_MODE):
                before = path.read_text(encoding="utf-8") if path.exists() else ""
                write_whole(path, before + entry.line(), durable=True)

    def prune(self, keep: int) -> None:
        """Shrink all nights but the last ``keep``; one not delivered yet stays whole."""
        for night in self.nights()[:-keep]:
            if night.delivered or "given_up" in night.facts:
                night.shrink()


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, and have the disk keep it."""
    with writing(path, StorageError):
        make_folders(path.parent)
        write_whole(path, text, durable=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return what a file holds, None if it is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


log = logging.getLogger(__name__)
LAST_SECONDS = 30.0
"""For how long a start waits for a bucket that is away, at its beginning and its end."""


class BucketBook(Book):
    """Nights that any machine runs and reads: their files lie in a bucket, the folder is a copy."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self._cache = Cache(folder.parents[1], address, log.warning)
        self._name = self._cache.name(folder)
        self._lease = Lease(
            self._cache.bucket, f"{self._name}/lock", describe_process(), patience=math.inf
        )

    def fetch(self) -> None:
        """Take what the bucket has and this machine has not."""
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
        """Own all nights within the block; before, the folder and the bucket agree."""
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
        """Send a file; raise ``BusyError`` if another process has taken the nights over."""
        if self._lease.lost:
            raise BusyError(f"the nights were taken over by {self._lease.holder()}; this run stops")
        try:
            self._cache.promise(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be sent: {error.strerror or error}") from error
        self._cache.keep(path)

    def settle(self) -> None:
        """Wait until all is sent, or the bucket is away."""
        self._cache.settle(LAST_SECONDS)

    def accept(self, entry: Acceptance) -> None:
        """Add a line to the accepted changes there, then here."""
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
