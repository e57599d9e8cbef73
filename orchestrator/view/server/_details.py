"""The slow parts of a sweep's page, computed in the background once the sweep has ended."""

from pathlib import Path
from threading import Lock, Thread
from typing import Any

from cachetools import LRUCache

from orchestrator.storage.ledger import Ledger
from orchestrator.storage.results import usual_baseline
from orchestrator.storage.status import SweepStatus
from orchestrator.storage.storage import SweepFolder
from orchestrator.view import LIVE, details, from_folder
from orchestrator.view.server._aside import Aside
from trainables.common.errors import InputError

KEPT = 8  # Sweeps.
FAILED = (
    "Intervals, reliability diagrams and ranks could not be computed; "
    "the terminal of `calsweep ui` shows the error."
)


class Details:
    """The ``details`` of sweeps that have ended, computed once for each state of their journals."""

    def __init__(self) -> None:
        self._found: LRUCache[tuple[str, str, int], dict[str, Any] | None] = LRUCache(KEPT)
        self._lock, self._aside = Lock(), Aside()

    def of(self, folder: SweepFolder, ledger: Ledger, status: SweepStatus) -> dict[str, Any] | None:
        """Return them; None while the sweep runs, or while they are computed.

        The first request after its end, or after its journal has grown, starts the computation.
        """
        if status.state in LIVE:
            return None
        run = folder.name, ledger.sweep_id, _size(folder.journal)
        with self._lock:
            if run not in self._found:
                self._found[run] = None
                Thread(target=self._compute, args=(folder, run), daemon=True).start()
            return self._found[run]

    def _compute(self, folder: SweepFolder, run: tuple[str, str, int]) -> None:
        found = {"pending": FAILED}  # Unless this ends well; the thread's error is printed.
        try:
            found = {**self._aside.call(_details, folder), "pending": ""}
        except InputError as error:
            found = {"pending": f"{error}."}
        finally:
            with self._lock:
                self._found[run] = found


def _size(journal: Path) -> int:
    return journal.stat().st_size if journal.exists() else 0


def _details(folder: SweepFolder) -> dict[str, Any]:
    source = from_folder(folder)
    return details(source, usual_baseline(source.results))
