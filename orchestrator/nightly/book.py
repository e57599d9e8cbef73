"""All nights of one benchmark as a folder: figures, verdicts, and the accepted nights."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from orchestrator.nightly.record import CellKey, NightRecord, Verdict
from trainables.common.errors import InputError, StorageError
from trainables.common.files import LOCK_MODE, make_folders, write_whole, writing

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
    """A change that somebody intended, with the reason given.

    Attributes:
        cell: The series that starts anew; without a metric, all of the pair.
        night: The first night of the new series.
        time: When it was said, ISO 8601.
    """

    cell: CellKey
    night: str
    why: str
    time: str

    def line(self) -> str:
        """Return it as a line of the file of accepted changes."""
        return json.dumps({**vars(self), "cell": str(self.cell)}) + "\n"


class Night:
    """One night's ``STORAGE/nightly/NAME/nights/NIGHT``; its files appear whole or not at all.

    Args:
        folder: Its folder.
        written: Hears of every file that was written.
    """

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

        As in a sweep's folder, ``run.lock`` is locked, by the file system and for all machines that
        share it, and ``owner`` names the process for people.

        Yields:
            Whom they were taken over from, for a person to read; empty if that one ended in order.

        Raises:
            BusyError: If another process holds them.
            InputError: If the folder cannot be written.
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
        """Return the night from which on each accepted cell's series starts anew.

        Raises:
            InputError: If the file is damaged.
        """
        path = self.folder / ACCEPTED
        if not path.exists():
            return {}
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            return {CellKey.parse(row["cell"]): row["night"] for row in rows}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {error}") from error

    def accept(self, entry: Acceptance) -> None:
        """Add a line to the accepted changes; nothing is ever taken out.

        Raises:
            StorageError: If the file cannot be written.
        """
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
    """Write a file whole or not at all, and have the disk keep it.

    Raises:
        StorageError: If it cannot be written.
    """
    with writing(path, StorageError):
        make_folders(path.parent)
        write_whole(path, text, durable=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return what a file holds, None if it is not there.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
