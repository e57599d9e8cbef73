"""What every scheduler is told: the command, where it runs, and when."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from orchestrator.nightly._clock import Schedule, make_schedule
from orchestrator.nightly._config import Nightly
from trainables.errors import InputError

__all__ = ["Entry", "call", "check_printable", "make_entry"]

CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Entry:
    """A night's start, as a scheduler has to know it.

    Attributes:
        name: The benchmark's.
        command: Program and arguments; no shell is needed.
        directory: Where it runs: the nightly file's relative paths begin there.
        log: Where its output may go.
        at: Time of the day, ``HH:MM``.
        time_zone: Its time zone; None for the machine's own.
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    log: Path
    at: str
    time_zone: str | None = None

    @property
    def schedule(self) -> Schedule:
        """Return when nights begin."""
        return make_schedule(self.at, self.time_zone)

    @property
    def hours(self) -> tuple[int, ...]:
        """Return the hours of the day at which to start.

        A second one, an hour later, where the time of the day does not exist on some days: many
        schedulers leave a night out then. On all other days the second start finds the verdict and
        ends.
        """
        hour = int(self.at[:2])
        second = self.schedule.in_a_gap(_today())
        return (hour, (hour + 1) % 24) if second else (hour,)

    @property
    def minute(self) -> int:
        """Return the minute."""
        return int(self.at[3:])


def make_entry(
    nightly: Nightly, at: str, time_zone: str | None, options: Sequence[str] = ()
) -> Entry:
    """Return the entry that runs a nightly file with this Python, from this folder.

    Args:
        nightly: The benchmark.
        at: ``HH:MM``.
        time_zone: Such as ``Europe/Berlin``; None for the machine's own.
        options: Further options of ``calsweep nightly run``.

    Raises:
        InputError: If time or zone are not understood, or a path holds a control character.
    """
    make_schedule(at, time_zone)
    zone = ["--time-zone", time_zone] if time_zone else []
    arguments = ["nightly", "run", str(nightly.path), "--at", at, *zone, *options, "--quiet"]
    # -P: a folder named like one of our packages, where it runs, is not taken for it.
    command = (sys.executable, "-P", "-m", "orchestrator", *arguments)
    log = nightly.folder / "schedule.log"
    for text in (*command, str(Path.cwd()), str(log)):
        check_printable(text)
    return Entry(nightly.name, command, Path.cwd(), log, at, time_zone)


def check_printable(text: str) -> None:
    """Refuse what would end a line in a scheduler's file.

    Raises:
        InputError: If the text holds a control character.
    """
    if CONTROL.search(text):
        raise InputError(f"{text!r} cannot be scheduled: it holds a control character")


def call(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of the system's own programs, without a shell.

    Raises:
        InputError: If the program is absent or does not end within a minute.
    """
    try:
        return subprocess.run(list(command), input=text, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{command[0]} cannot be run here: {error}") from error


def _today() -> date:
    return datetime.now(UTC).date()
