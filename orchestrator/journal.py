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
    ``reason`` (empty unless it failed), ``reused`` (its outcome came from the store), ``seconds``,
    and unless it was reused ``epoch_seconds`` (mean) and ``peak_memory`` (bytes).
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
"""

from __future__ import annotations

import json
import os
import threading
import time
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
        InputError: If the file cannot be written, or a line other than the last is damaged.
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
        InputError: If there is no such file, or a line that is not the last is damaged.
    """
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            lines = _lines(stream, limit)
    except OSError as error:
        raise InputError(f"journal {path} cannot be read: {error.strerror}") from error
    events, end = [], offset
    for index, line in enumerate(lines):
        event = _decode(line)
        if event is None:
            if index == len(lines) - 1:
                break
            number = _lines_before(path, offset) + index + 1
            raise InputError(f"journal {path}, line {number}: damaged, not one whole event")
        events.append(event)
        end += len(line)
    return events, end


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
    whole = {"time": time.time_ns() // 1_000_000, **event}
    try:
        text = json.dumps(whole, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise ValueError(f"event {name!r}: {error}") from error
    return text.encode() + b"\n"


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
    if not line.endswith(b"\n"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if _is_whole(event) else None


def _is_whole(event: Any) -> bool:
    """Tell whether a line is one of the events, with what each of them holds."""
    name = event.get("event") if isinstance(event, dict) else None
    return isinstance(name, str) and name in EVENTS and all(f in event for f in EVENTS[name])


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _lines_before(path: str | Path, offset: int) -> int:
    with open(path, "rb") as stream:
        return stream.read(offset).count(b"\n")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"journal {path} cannot be written: {error.strerror}")
