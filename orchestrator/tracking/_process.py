"""The shipper as a process of its own, so that the sweep never waits for the tracking store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.tracking._memory import delivered
from orchestrator.tracking._uri import check_tracking_uri

URI_VARIABLE = "CALSWEEP_SHIPPER_URI"
"""Hands the address over: it may hold a password, and a command line is public."""

RESTARTS = 3


class ShipperProcess:
    """A running shipper. It ends by itself: when the sweep has ended, or its parent has died.

    Args:
        command: The command line.
        uri: The tracking store.
        journal: The journal it follows.
        log: Where its output goes.
    """

    def __init__(self, command: list[str], uri: str, journal: Path, log: Path) -> None:
        self.journal = journal
        self.log = log
        self._command = command
        self._environment = {**os.environ, URI_VARIABLE: uri}
        self._process = self._start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Say whether it runs."""
        return self._process.poll() is None

    def revive(self) -> bool:
        """Start it again if it died before its work was done; return whether that was so."""
        if self._process.poll() in (None, 0):
            return False
        self._process = self._start()
        return True

    def progress(self) -> tuple[int, int]:
        """Return how many bytes of the journal have been delivered, and how many there are."""
        return delivered(self.journal)

    def wait_drained(
        self, timeout: float, on_progress: Callable[[int, int], None] | None = None
    ) -> bool:
        """Wait until everything is delivered, after ``sweep_ended`` has been written.

        Args:
            timeout: Seconds to wait at most.
            on_progress: Called twice a second with the bytes delivered and the bytes there are.

        Returns:
            Whether everything is delivered. If not, the shipper is still at it: leave it to end
            when this process does, or ``stop`` it and deliver the rest with ``sync``.
        """
        end, restarts = time.monotonic() + timeout, RESTARTS
        while time.monotonic() < end:
            if on_progress is not None:
                on_progress(*self.progress())
            try:
                if self._process.wait(min(0.5, timeout)) == 0:
                    return True
            except subprocess.TimeoutExpired:
                continue
            if restarts == 0:
                return False
            restarts -= 1
            self.revive()
        return False

    def stop(self) -> None:
        """End it now; what is not delivered stays in the journal for ``sync``."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
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
    artifact_root: str | Path | None = None,
    log: str | Path | None = None,
    poll_seconds: float = 1.0,
) -> ShipperProcess:
    """Start delivering a journal that this process writes or is about to write.

    Args:
        journal: The journal.
        uri: See ``check_tracking_uri``. A SQLite database is created by the shipper, which is the
            only process that writes to it.
        artifact_root: See ``ship``.
        log: Where the shipper's output goes; ``shipper.log`` beside the journal if not given.
        poll_seconds: How long events are collected before they are sent together.

    Raises:
        InputError: If the address cannot be used.
    """
    check_tracking_uri(uri)
    journal = Path(journal).resolve()
    arguments = {
        "journal": journal,
        "parent-pid": os.getpid(),
        "poll-seconds": poll_seconds,
        "since": time.time_ns() // 1_000_000,
    }
    command = [sys.executable, "-m", "orchestrator.tracking", "--follow"]
    if artifact_root is not None:
        arguments["artifact-root"] = Path(artifact_root).resolve()
    command += [f"--{name}={value}" for name, value in arguments.items()]
    return ShipperProcess(command, uri, journal, Path(log or journal.with_name("shipper.log")))
