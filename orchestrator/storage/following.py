"""One sweep whose journal is read on as it grows."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import RLock

from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.storage import SweepFolder
from trainables.common.errors import InputError

PIECE = 4_000_000  # Bytes whose events are held at once.


class FollowedSweep:
    """A sweep and what its journal has told so far; threads may share it.

    The figures named by ``curves`` are kept for each epoch.

    Attributes:
        folder: Where it lies.
        problem: Why its journal cannot be read on; empty if it can.
    """

    def __init__(self, folder: SweepFolder, curves: Collection[str] = ()) -> None:
        self.folder, self.problem, self._curves = folder, "", curves
        self._lock = RLock()
        self._forget()

    def _forget(self) -> None:
        self._ledger = Ledger(curves=self._curves)
        self._file, self._offset = -1, 0

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Yield what the journal tells by now; it does not change within the block."""
        with self._lock:
            self.read_on()
            yield self._ledger

    def read_on(self) -> None:
        """Take in all lines since the last time, or all if it is another file by now."""
        with self._lock:
            try:
                found = os.stat(self.folder.journal)
            except OSError:
                self._forget()
                return
            if found.st_ino != self._file or found.st_size < self._offset:
                self._forget()
                self._file = found.st_ino
            if found.st_size == self._offset:
                return
            try:
                self._take_in()
                self.problem = ""
            except InputError as error:
                self.problem = str(error)

    def _take_in(self) -> None:
        end = -1
        while end != self._offset:
            self._offset = max(end, self._offset)
            events, end = read_events(self.folder.journal, self._offset, PIECE)
            for event in events:
                self._ledger.apply(event)
