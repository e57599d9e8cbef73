r"""The journal of a sweep: append-only JSON lines, the truth that tracking and tables are views of.

One event is one line, an object with ``event``, ``time`` (milliseconds since 1970, set by
``Journal.append`` where it is missing) and these fields:

``sweep_started``
    ``sweep`` (name), ``sweep_id`` (hex), ``spec`` (the resolved sweep file), ``provenance``
    (``git_commit``, ``versions``, ``hardware``).
``study_opened``
    ``study`` (``<task>|<recipe>``), ``task``, ``recipe``, ``trials`` (planned), ``block`` (trials
    suggested at once; missing in the oldest journals), ``upstream`` (the
    study it builds on, or null), ``row`` (false: it exists only because others build on it, and is
    no row of a table), ``dataset``, ``model``, ``protocol`` (names), ``fingerprint`` (hash of the
    data as split), ``setting`` (hash of data, model and protocol), ``rule`` (how the choice is
    made), ``origin`` (what a trial's configuration leaves open, so that it can be computed again).
``trial_started``
    ``study``, ``number`` (from 0 within the study and role), ``key`` (hex, names the trial for
    ever), ``role`` (``search`` or ``seed``), ``seed``, ``stage`` (``train``, ``refine`` or
    ``calibrate``), ``parameters`` (those searched in this study, ``{"mbls.margin": 6.0}``),
    ``configuration`` (the whole chain, one mapping a part,
    ``{"mbls": {"margin": 6.0, "weight": 0.1}, "macal": {...}}``).
``epoch``
    ``key``, ``step`` (rising, one event a step; a step that comes again is a resumed trial's and
    adds nothing), ``metrics``.
``trial_finished``
    ``key``, ``status`` (``finished``, ``failed`` or ``pruned``), ``metrics`` (validation),
    ``reason`` (empty unless it failed), ``fault`` (``machine`` if it failed by no fault of its
    configuration: a resumed sweep tries it again; else empty or missing), ``host`` and
    ``traceback`` (where it failed, if that is known), ``reused`` (its outcome came from the store),
    ``seconds``, and unless it was reused ``epoch_seconds`` (mean) and ``peak_memory`` (bytes).
``trial_scored``
    ``key``, ``objective`` (the guarded validation objective, lower is better; it may come later
    than ``trial_finished``).
``study_closed``
    ``study``, ``chosen`` (key or null), ``finished`` and ``failed`` (counts of its search trials),
    ``reason`` (of the first failed trial, or why nothing could run; else empty).
``evaluated``
    ``key``, ``study``, ``seed``, ``metrics`` (``test_*``), ``artifacts`` (file name to absolute
    path), ``predictions`` (key of the ``evaluate`` artifact), ``seconds`` (what the chain of stages
    cost to compute, or null). Only for chosen configurations.
``sweep_ended``
    ``status`` (``finished``, ``failed`` or ``interrupted``).

What a resumed sweep would say again (``trial_started``, ``epoch``, ``trial_scored``) is written
without waiting for the disk; everything else, and with it what came before, is there for good when
``append`` returns.

A resumed sweep goes on in the same journal. Every event may therefore occur again; the later one
counts, and saying a thing twice changes nothing. Numbers are strict JSON: neither NaN nor infinity.

A line begins with ``{"event":`` and ends with its checksum, ``,"crc":"1a2b3c4d"}``: the CRC-32 of
the bytes before that comma. Lines of journals from before there were checksums begin with
``{"time":`` and have none; a resumed one holds both kinds. No damage makes one kind look like the
other, so that a line whose checksum is gone is found too, wherever reading begins.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from trainables.errors import InputError

__all__ = ["EVENTS", "TEST_PREFIX", "Journal", "read_events", "study_id"]

EVENTS: Mapping[str, tuple[str, ...]] = {
    "sweep_started": ("sweep", "sweep_id", "spec", "provenance"),
    "study_opened": ("study", "task", "recipe", "trials", "row"),
    "trial_started": ("study", "number", "key", "role", "seed", "stage", "configuration"),
    "epoch": ("key", "step", "metrics"),
    "trial_finished": ("key", "status", "metrics"),
    "trial_scored": ("key", "objective"),
    "study_closed": ("study", "chosen", "finished", "failed"),
    "evaluated": ("key", "study", "seed", "metrics"),
    "sweep_ended": ("status",),
}
"""The events and the fields without which each is refused."""

FLEETING = ("trial_started", "epoch", "trial_scored")

SEAL = b',"crc":"%08x"}\n'
SEAL_BYTES = len(SEAL % 0)
UNCHECKED = b'{"time":'  # Begins the lines of journals from before there were checksums.

TEST_PREFIX = "test_"
"""Starts the names of metrics measured on test data; only ``evaluated`` may carry them."""


def study_id(task: str, recipe: str) -> str:
    """Return the name of the study of a recipe on a task."""
    return f"{task}|{recipe}"


class Journal:
    """Writes the journal of one sweep. Threads may share it; only one process may write.

    Opening cuts off a last line that a crash left unfinished, so that what follows starts a line
    of its own.

    Args:
        path: The file; it and its parent folders are created where missing.

    Raises:
        InputError: If the file cannot be written, or a line is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            self._end = read_events(self.path)[1]
            os.ftruncate(self._handle, self._end)
        except BaseException:
            self.close()
            raise

    def append(self, event: Mapping[str, Any], durable: bool = True) -> None:
        """Write one event as one line.

        Args:
            event: See the module's text. ``time`` is added where missing.
            durable: Return only when the disk has it, unless it can be said again.

        Raises:
            ValueError: If the event is unknown, lacks a field, or holds NaN or infinity.
            InputError: If the disk is full or the file cannot be written; nothing of the event
                remains in the file then.
        """
        line = _encode(event)
        with self._lock:
            try:
                _write_all(self._handle, line)
                if durable and event["event"] not in FLEETING:
                    os.fsync(self._handle)
            except OSError as error:
                self._take_back()
                raise _unwritable(self.path, error) from error
            self._end += len(line)

    def close(self) -> None:
        """Flush to the disk and close; harmless when closed already."""
        with self._lock:
            handle, self._handle = self._handle, -1
            if handle >= 0:
                os.close(handle)

    def __enter__(self) -> Journal:
        """Return the journal itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the journal."""
        self.close()

    def _take_back(self) -> None:
        # A half-written line would turn into damage in the middle with the next append.
        if self._handle >= 0:
            os.ftruncate(self._handle, self._end)


def read_events(
    path: str | Path, offset: int = 0, limit: int = -1
) -> tuple[list[dict[str, Any]], int]:
    """Read the events from byte ``offset`` on.

    Args:
        path: A journal, which may be in the middle of being written.
        offset: 0, or what an earlier call returned.
        limit: Stop with the line that reaches so many bytes; negative for all there is.

    Returns:
        The events, and the offset after the last of them: an unfinished last line is left for the
        next call.

    Raises:
        InputError: If there is no such file, or a line is damaged.
    """
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            lines = _lines(stream, limit)
    except OSError as error:
        raise InputError(f"journal {path} cannot be read: {error.strerror}") from error
    events, end = [], offset
    for index, line in enumerate(lines):
        try:
            event = _decode(line)
        except ValueError as error:
            number = _lines_before(path, offset) + index + 1
            raise InputError(_remedy(path, number, str(error))) from error
        if event is None:
            break
        events.append(event)
        end += len(line)
    return events, end


def _remedy(path: str | Path, number: int, damage: str) -> str:
    return (
        f"journal {path}, line {number}: damaged, {damage}; outcomes are stored: cut the file "
        "before that line, or put an intact copy in its place, then `calsweep run --resume "
        f"{Path(path).absolute().parent.name}`"
    )


def _lines(stream: BinaryIO, limit: int) -> list[bytes]:
    # Not readlines(limit): that goes on by one line where a line ends exactly at the limit.
    lines, size = [], 0
    for line in stream:
        lines.append(line)
        size += len(line)
        if 0 <= limit <= size:
            break
    return lines


def _encode(event: Mapping[str, Any]) -> bytes:
    name = _check(event)
    whole = {"event": name, "time": time.time_ns() // 1_000_000, **event}
    try:
        text = json.dumps(whole, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise ValueError(f"event {name!r}: {error}") from error
    return _sealed(text.encode()[:-1])


def _sealed(content: bytes) -> bytes:
    """Return the line of an object that is given without its closing brace."""
    return content + SEAL % zlib.crc32(content)


def _check(event: Mapping[str, Any]) -> str:
    name = event.get("event")
    if not isinstance(name, str) or name not in EVENTS:
        raise ValueError(f"event={name!r} is not one of {', '.join(EVENTS)}")
    missing = [field for field in EVENTS[name] if field not in event]
    if missing:
        raise ValueError(f"event {name!r} lacks {', '.join(missing)}")
    if name in ("epoch", "trial_finished"):
        tests = [metric for metric in event["metrics"] if metric.startswith(TEST_PREFIX)]
        if tests:
            raise ValueError(f"event {name!r} holds {tests[0]}: test metrics belong to 'evaluated'")
    return name


def _decode(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None if the line has not been written to its end.

    Raises:
        ValueError: If the line is damaged; the text says how.
    """
    if line.endswith(b"\n"):
        return _intact(line)
    try:
        _intact(line[:-1] + b"\n")
    except ValueError:
        return None
    raise ValueError("it lacks its end")  # No line is cut off one byte after its last one.


def _intact(line: bytes) -> dict[str, Any]:
    checked = not line.startswith(UNCHECKED) or line[-SEAL_BYTES:].startswith(SEAL[:8])
    if checked and line != _sealed(line[:-SEAL_BYTES]):
        raise ValueError("it does not match its checksum")
    try:
        event = STRICT.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError("not one whole event") from error
    if not _is_whole(event):
        raise ValueError("not one whole event")
    whole: dict[str, Any] = event
    whole.pop("crc", None)
    return whole


def _is_whole(event: Any) -> bool:
    """Tell whether a line is one of the events, with what each of them holds."""
    name = event.get("event") if isinstance(event, dict) else None
    return isinstance(name, str) and name in EVENTS and all(f in event for f in EVENTS[name])


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def _whole_number(text: str) -> int:
    _finite(text)  # What reads a journal computes with floats.
    return int(text)


STRICT = json.JSONDecoder(parse_float=_finite, parse_int=_whole_number, parse_constant=_finite)


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _lines_before(path: str | Path, offset: int) -> int:
    with open(path, "rb") as stream:
        return stream.read(offset).count(b"\n")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"journal {path} cannot be written: {error.strerror}")
