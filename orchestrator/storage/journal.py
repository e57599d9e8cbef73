"""The journal of a sweep: append-only JSON lines, the truth that tracking and tables are views of.

What may happen, and how it is written, stands in ``orchestrator.storage.events``. What a resumed
sweep would say again (a trial's start and place, epochs, its objective) is written without waiting
for the disk; everything else, and with it what came before, is there for good when ``append``
returns. A power cut may therefore leave holes after the last event that was synced: those lines
count as not written.

A resumed sweep appends to the same journal. Every event may therefore occur again; the later one
counts, and saying a thing twice changes nothing.
"""

import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from orchestrator.storage.events import (
    DECISIONS,
    Epoch,
    Event,
    TrialPlaced,
    TrialScored,
    TrialStarted,
    from_line,
    to_line,
)
from trainables.common.errors import InputError
from trainables.common.files import make_folders, sync, why
from trainables.common.paths import sweep_command

SAID_AGAIN = (TrialStarted, TrialPlaced, Epoch, TrialScored)
HOLE = b"\0"  # What a file holds where a write was lost and a later one was not.


class Journal(AbstractContextManager["Journal"]):
    """Writes the journal of one sweep, after the last whole line; for threads of one process."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            make_folders(self.path.parent)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            sync(self.path.parent)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            self._end = 0
            for _, end in _scan(self.path, kinds=()):
                self._end = end
            os.ftruncate(self._handle, self._end)
        except BaseException:
            self.close()
            raise

    def append(self, event: Event, durable: bool = True) -> None:
        """Write one event, with the present time if it has none, as one line.

        A ``durable`` one is on the disk when this returns, unless it can be said again.

        Raises:
            ValueError: If it holds NaN or infinity, or figures of test data where none belong.
        """
        timed = event if event.time else replace(event, time=time.time_ns() // 1_000_000)
        line = to_line(timed)
        with self._lock:
            try:
                _write_all(self._handle, line)
                if durable and not isinstance(event, SAID_AGAIN):
                    os.fsync(self._handle)
            except OSError as error:
                # A half-written line would turn into damage in the middle with the next append.
                if self._handle >= 0:
                    os.ftruncate(self._handle, self._end)
                raise _unwritable(self.path, error) from error
            self._end += len(line)

    def delivered(self) -> bool:
        """Return True if all events have arrived wherever they are to be."""
        return True

    def close(self) -> None:
        """Close; harmless when closed already."""
        with self._lock:
            handle, self._handle = self._handle, -1
            if handle >= 0:
                os.close(handle)

    def __exit__(self, *_: object) -> None:
        self.close()


def iterate_events(
    path: str | Path, kinds: Collection[type[Event]] | None = DECISIONS
) -> Iterator[Event]:
    """Yield the events of a journal, which may be in the middle of being written.

    Those of other ``kinds`` than are wanted, by default the epochs, are checked for damage only;
    None wants all.
    """
    return (event for event, _ in _scan(path, kinds=kinds) if event is not None)


def read_events(path: str | Path, offset: int = 0, limit: int = -1) -> tuple[list[Event], int]:
    """Return the events from byte ``offset`` on, and the offset after the last of them.

    An unfinished last line is left for the next call, which is given that offset.

    Args:
        path: A journal, which may be in the middle of being written.
        offset: 0, or what an earlier call returned.
        limit: Stop with the line that reaches so many bytes; negative for all there is.
    """
    found = list(_scan(path, offset, limit))
    end = found[-1][1] if found else offset
    return [event for event, _ in found if event is not None], end


def _scan(
    path: str | Path,
    offset: int = 0,
    limit: int = -1,
    kinds: Collection[type[Event]] | None = None,
) -> Iterator[tuple[Event | None, int]]:
    """Yield the event of each whole line, None for one that is not wanted, and where it ends."""
    end, count = offset, 0
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            for line in stream:
                count += 1
                if not line.endswith(b"\n"):
                    _check_unfinished(line)
                    return
                event = from_line(line, kinds)
                end += len(line)
                yield event, end
                if 0 <= limit <= end - offset:
                    return
    except OSError as error:
        raise InputError(f"journal {path} cannot be read: {why(error)}") from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        with open(path, "rb") as stream:
            number = stream.read(offset).count(b"\n") + count
            stream.seek(end)
            if HOLE in stream.readline() and _never_promised(stream):
                return
        raise InputError(_remedy(path, number, str(error))) from error


def _check_unfinished(line: bytes) -> None:
    """Refuse a last line that has all but its end: none is cut off one byte after its last one."""
    try:
        from_line(line[:-1] + b"\n")
    except ValueError:
        return
    raise ValueError("it lacks its end")


def _never_promised(lines: Iterable[bytes]) -> bool:
    """Return True if no line after a lost write was reported as stored."""
    promised = 0
    for line in lines:
        try:
            promised += not isinstance(from_line(line), SAID_AGAIN)
        except ValueError:
            continue
        if promised > 1:  # When the last one was written, the one before had been synced.
            return False
    return True


def _remedy(path: str | Path, number: int, damage: str) -> str:
    return (
        f"journal {path}, line {number}: damaged, {damage}; outcomes are stored: cut the file "
        "before that line, or put an intact copy in its place, then "
        f"`{sweep_command('run --resume', Path(path).absolute().parent)}`"
    )


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"journal {path} cannot be written: {why(error)}")
