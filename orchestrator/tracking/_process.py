"""The shipper as a process of its own, and how far it has got: no sweep waits for its tracker."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from orchestrator.sweep.tracking_uri import check_tracking_uri, is_plugged
from trainables.common.files import write_whole

URI_VARIABLE = "CALSWEEP_SHIPPER_URI"
"""Hands the address over: it may hold a password, and a command line is public."""

RESTARTS = 3

logger = logging.getLogger(__name__)


class Fault(NamedTuple):
    """Why the tracker took nothing when it was asked last; ``lasting``: see ``BlockedError``."""

    text: str
    lasting: bool


def note_fault(journal: Path, fault: Fault | None) -> None:
    """Keep a fault next to the journal for the sweep's own process, or remove the last one."""
    path = _fault_path(journal)
    try:
        if fault is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, json.dumps(fault))
    except OSError as error:
        logger.warning("%s cannot be written (%s); it is not needed", path, error)


def _fault_path(journal: Path) -> Path:
    return journal.with_name("shipper.fault")


@dataclass
class Memory:
    """What a restarted shipper need not ask the tracker for.

    Attributes:
        store: Digest of the tracker's address and experiment for which the rest is true.
        offset: Bytes of the journal that have been delivered.
        last: Time of the last event in them. A line in its place may be as long, after the journal
            was cut.
        runs: Run id of each trial (by key) and study (by name).
        ahead: About how many bytes beyond ``offset`` have been delivered; a shipper that starts
            again delivers them again.
    """

    store: str = ""
    sweep_id: str = ""
    offset: int = 0
    runs: dict[str, str] = field(default_factory=dict)
    ahead: int = 0
    last: int = 0

    @classmethod
    def load(cls, journal: Path) -> Memory:
        """Read it; a missing or damaged file, or none that can be read, is an empty memory."""
        path = _path(journal)
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()
        except OSError as error:
            logger.warning("%s cannot be read (%s); delivering from the start", path, error)
        except (ValueError, TypeError):
            logger.warning("%s is damaged; delivering from the start", path)
        return cls()

    def save(self, journal: Path) -> None:
        """Write it, whole or not at all; without it a later shipper delivers again, and says so."""
        path = _path(journal)
        content = {**vars(self), "runs": dict(self.runs)}  # Other threads may add runs meanwhile.
        try:
            write_whole(path, json.dumps(content), durable=True)
        except OSError as error:
            logger.warning("%s cannot be written (%s); it is not needed", path, error)


def delivered_runs(journal: Path) -> dict[str, str]:
    """Return the run id of each trial (by key) and study (by name) that has reached the tracker."""
    return Memory.load(journal).runs


def delivered(journal: Path) -> tuple[int, int]:
    """Return how many bytes of a journal have been delivered, and how many there are."""
    total = journal.stat().st_size if journal.exists() else 0
    memory = Memory.load(journal)
    return min(memory.offset + memory.ahead, total), total


def _path(journal: Path) -> Path:
    return journal.with_name("shipped.json")


class ShipperProcess:
    """A running shipper. It ends by itself: when the sweep has ended, or its parent has died."""

    def __init__(self, command: list[str], uri: str, journal: Path) -> None:
        self.journal = journal
        self.log = journal.with_name("shipper.log")
        self._command = command
        self._environment = {**os.environ, URI_VARIABLE: uri}
        self.process = self._start()

    def revive(self) -> bool:
        """Start it again if it died before its work was done; return whether that was so."""
        if self.process.poll() in (None, 0):
            return False
        self.process = self._start()
        return True

    def progress(self) -> tuple[int, int]:
        """Return how many bytes of the journal have been delivered, and how many there are."""
        return delivered(self.journal)

    def fault(self) -> Fault | None:
        """Return why the tracker takes nothing, if the shipper met a fault since its last try."""
        try:
            return Fault(*json.loads(_fault_path(self.journal).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def wait_drained(self, timeout: float) -> bool:
        """Wait, after ``sweep_ended``, until everything is delivered; return whether it is."""
        end, restarts = time.monotonic() + timeout, RESTARTS
        while time.monotonic() < end:
            try:
                if self.process.wait(min(0.5, timeout)) == 0:
                    return True
            except subprocess.TimeoutExpired:
                continue
            if restarts == 0:
                return False
            restarts -= 1
            self.revive()
        return False

    def stop(self) -> None:
        """End it now; undelivered events stay in the journal for ``sync``."""
        self.process.kill()
        self.process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        note_fault(self.journal, None)
        with open(self.log, "ab") as output:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C is for the sweep, whose last events must still be delivered.
                start_new_session=True,
            )


def start_shipper(
    journal: str | Path,
    uri: str,
    artifact_root: str | Path,
    poll_seconds: float = 1.0,
    plugins: Sequence[tuple[str, str]] = (),
) -> ShipperProcess:
    """Start delivering a journal that this process writes or is about to write."""
    check_tracking_uri(uri)
    journal = Path(journal).resolve()
    options = {
        "journal": str(journal),
        "artifact_root": str(Path(artifact_root).resolve()),
        "parent_pid": os.getpid(),
        "poll_seconds": poll_seconds,
        "since": time.time_ns() // 1_000_000,
        "plugins": list(plugins) if is_plugged(uri) else [],
    }
    command = [sys.executable, "-m", "orchestrator.tracking", json.dumps(options)]
    return ShipperProcess(command, uri, journal)
