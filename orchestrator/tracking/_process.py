"""The shipper: a process that delivers a journal, so that the sweep never waits for its tracker."""

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
"""Environment variable with the tracker's address.

The address may have a password, and other users can read a command line.
"""

RESTARTS = 3

logger = logging.getLogger(__name__)


class Fault(NamedTuple):
    """Why the last request to the tracker failed; ``lasting`` if waiting does not help."""

    text: str
    lasting: bool


def note_fault(journal: Path, fault: Fault | None) -> None:
    """Write the fault to a file next to the journal, for the sweep's process; None removes it."""
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
    """The state of a delivery, so that a restarted shipper continues it.

    Attributes:
        store: Digest of the tracker's address and experiment to which this state belongs.
        offset: Bytes of the journal that have been delivered.
        last: Time of the last delivered event. It detects a journal that was cut and continued.
        runs: Run id of each trial (by key) and study (by name).
        ahead: Bytes beyond ``offset`` that have been delivered, roughly; a restarted shipper sends
            them again.
    """

    store: str = ""
    sweep_id: str = ""
    offset: int = 0
    runs: dict[str, str] = field(default_factory=dict)
    ahead: int = 0
    last: int = 0

    @classmethod
    def load(cls, journal: Path) -> "Memory":
        """Read the state; it is empty if the file is missing, damaged or unreadable."""
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
        """Write the state atomically; without it a later shipper delivers everything again."""
        path = _path(journal)
        content = {**vars(self), "runs": dict(self.runs)}  # Other threads may add runs meanwhile.
        try:
            write_whole(path, json.dumps(content), durable=True)
        except OSError as error:
            logger.warning("%s cannot be written (%s); it is not needed", path, error)


def delivered_runs(journal: Path) -> dict[str, str]:
    """Return the run id of each delivered trial (by key) and study (by name)."""
    return Memory.load(journal).runs


def delivered(journal: Path) -> tuple[int, int]:
    """Return the number of delivered bytes of a journal (roughly), and the journal's size."""
    total = journal.stat().st_size if journal.exists() else 0
    memory = Memory.load(journal)
    return min(memory.offset + memory.ahead, total), total


def _path(journal: Path) -> Path:
    return journal.with_name("shipped.json")


class ShipperProcess:
    """A running shipper. It exits when the sweep has ended or its parent has died."""

    def __init__(self, command: list[str], uri: str, journal: Path) -> None:
        self.journal = journal
        self.log = journal.with_name("shipper.log")
        self._command = command
        self._environment = {**os.environ, URI_VARIABLE: uri}
        self.process = self._start()

    def revive(self) -> bool:
        """Restart the process if it failed or was killed; return whether it was restarted."""
        if self.process.poll() in (None, 0):
            return False
        self.process = self._start()
        return True

    def progress(self) -> tuple[int, int]:
        """Return the number of delivered bytes of the journal (roughly), and its size."""
        return delivered(self.journal)

    def fault(self) -> Fault | None:
        """Return why the shipper's last request failed; None if it did not fail."""
        try:
            return Fault(*json.loads(_fault_path(self.journal).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def wait_drained(self, timeout: float) -> bool:
        """Wait until all events of an ended sweep are delivered; return True on success.

        This takes at most ``timeout`` seconds and at most ``RESTARTS`` restarts of the shipper.
        """
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
        """Kill the process; undelivered events stay in the journal for ``sync``."""
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
                # Ctrl-C must stop only the sweep: its last events must still be delivered.
                start_new_session=True,
            )


def start_shipper(
    journal: str | Path,
    uri: str,
    artifact_root: str | Path,
    poll_seconds: float = 1.0,
    plugins: Sequence[tuple[str, str]] = (),
) -> ShipperProcess:
    """Start a process that delivers a journal until the sweep ends or this process dies."""
    check_tracking_uri(uri)
    journal = Path(journal).resolve()
    options = {
        "journal": str(journal),
        "artifact_root": str(Path(artifact_root).resolve()),
        "parent_pid": os.getpid(),
        "poll_seconds": poll_seconds,
        "plugins": list(plugins) if is_plugged(uri) else [],
    }
    command = [sys.executable, "-m", "orchestrator.tracking", json.dumps(options)]
    return ShipperProcess(command, uri, journal)
