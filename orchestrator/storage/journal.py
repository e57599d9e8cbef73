"""The journal of a sweep: append-only JSON lines, from which tracking and tables are derived.

``orchestrator.storage.events`` has the events and their format. ``append`` does not wait for the
disk if a resumed sweep would write the event again (a trial's start and place, epochs, its
objective), or if the caller passes ``durable=False``. Any other event, and all lines before it, are
on disk when ``append`` returns. So a power cut may leave holes after the last synced event; the
lines there count as not written.

A resumed sweep appends to the same journal, so events may be repeated; see ``Ledger``.
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
HOLE = b"\0"  # Content of a file where a write was lost but a later one was not.


class Journal(AbstractContextManager["Journal"]):
    """Appends to the journal of one sweep, after its last complete line; thread-safe."""

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
        """Write one event as a line, with the current time if it has none.

        If ``durable``, wait for the disk, except for events in ``SAID_AGAIN``.

        Raises:
            ValueError: If ``to_line`` refuses the event.
        """
        timed = event if event.time else replace(event, time=time.time_ns() // 1_000_000)
        line = to_line(timed)
        with self._lock:
            try:
                _write_all(self._handle, line)
                if durable and not isinstance(event, SAID_AGAIN):
                    os.fsync(self._handle)
            except OSError as error:
                # The next append would turn an incomplete line into damage inside the journal.
                if self._handle >= 0:
                    os.ftruncate(self._handle, self._end)
                raise _unwritable(self.path, error) from error
            self._end += len(line)

    def delivered(self) -> bool:
        """Return True if all events have reached the storage; see ``BucketJournal``."""
        return True

    def close(self) -> None:
        """Close the file; may be called again."""
        with self._lock:
            handle, self._handle = self._handle, -1
            if handle >= 0:
                os.close(handle)

    def __exit__(self, *_: object) -> None:
        self.close()


def iterate_events(
    path: str | Path, kinds: Collection[type[Event]] | None = DECISIONS
) -> Iterator[Event]:
    """Yield the events of these ``kinds``, or all if None; another process may be writing.

    Events of other kinds (by default epochs) are only checked for damage.
    """
    return (event for event, _ in _scan(path, kinds=kinds) if event is not None)


def read_events(path: str | Path, offset: int = 0, limit: int = -1) -> tuple[list[Event], int]:
    """Return the events from byte ``offset`` on, and the offset for the next call.

    An incomplete last line is left for the next call.

    Args:
        path: A journal; another process may be writing it.
        offset: 0, or the offset that an earlier call returned.
        limit: Stop after the line that reaches this many bytes; negative for no limit.
    """
    scanned = list(_scan(path, offset, limit))
    end = scanned[-1][1] if scanned else offset
    return [event for event, _ in scanned if event is not None], end


def _scan(
    path: str | Path, offset: int = 0, limit: int = -1, kinds: Collection[type[Event]] | None = None
) -> Iterator[tuple[Event | None, int]]:
    """Yield each complete line's event (None if not of ``kinds``) and the offset after it."""
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
            if HOLE in stream.readline() and _never_synced(stream):
                return
        raise InputError(_remedy(path, number, str(error))) from error


def _check_unfinished(line: bytes) -> None:
    """Raise ``ValueError`` if only the line end is wrong: an interrupted write does not do that."""
    try:
        from_line(line[:-1] + b"\n")
    except ValueError:
        return
    raise ValueError("it has a wrong line end")


def _never_synced(lines: Iterable[bytes]) -> bool:
    """Return True if no line after a lost write had been synced."""
    durable = 0
    for line in lines:
        try:
            durable += not isinstance(from_line(line), SAID_AGAIN)
        except ValueError:
            continue
        if durable > 1:  # The first durable event was synced before the second was written.
            return False
    return True


def _remedy(path: str | Path, number: int, damage: str) -> str:
    return (
        f"journal {path}, line {number}: damaged, {damage}; results are stored, so cut the file "
        "before that line, or replace it with an intact copy, then run "
        f"`{sweep_command('run --resume', Path(path).absolute().parent)}`"
    )


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"journal {path} cannot be written: {why(error)}")
