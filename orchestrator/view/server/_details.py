"""The slow parts of a sweep's page, computed in the background."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from cachetools import LRUCache

from orchestrator.storage.ledger import Ledger
from orchestrator.storage.results import StudyResult, usual_baseline
from orchestrator.storage.status import SweepStatus
from orchestrator.storage.storage import SweepFolder
from orchestrator.view import LIVE, details, from_folder
from orchestrator.view.server._aside import Aside
from trainables.common.errors import InputError
from trainables.metrics import METRICS

KEPT = 32  # Cached results, of sweeps and of choices of columns: about 1 MB each.
COMPUTING = "are being computed; this page shows them when they are ready."
NO_ROWS = "need all probabilities of each row; a .calsweep file has only two."
IN_PAGE = "they need all probabilities. Unpack the .calsweep file: its index.html has them."
FAILED = "This could not be computed; the terminal of `calsweep ui` shows the error."
SLOW = "Intervals, reliability diagrams and ranks"

Results = list[StudyResult]


class Details:
    """Computes and caches the slow parts of pages.

    The details of a sweep are computed again when its journal has grown, chosen columns when there
    are other predictions. ``frozen`` means that the storage was opened from a ``.calsweep`` file.
    """

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen
        self._found: LRUCache[tuple[Any, ...], Any] = LRUCache(KEPT)
        self._lock, self._aside = Lock(), Aside()

    def of(self, folder: SweepFolder, ledger: Ledger, status: SweepStatus) -> dict[str, Any] | None:
        """Return the ``details`` of a sweep; None while it runs or they are being computed.

        The first request after its end, or after its journal has grown, starts the computation.
        """
        if status.state in LIVE:
            return None
        run = folder.name, ledger.sweep_id, _size(folder.journal)
        return self._later(run, lambda text: {"pending": text}, _details, folder, self._frozen)

    def columns(
        self, folder: SweepFolder, results: Results, names: Sequence[str]
    ) -> tuple[Results, list[str], bool]:
        """Return the results with those named metrics that are ready, and notes for the page.

        Metrics that the journal does not have are computed after the first request, except for a
        ``.calsweep`` file. The third value tells whether nothing is being computed any more.
        """
        wanted, predictions = METRICS.columns(names), [each.predictions for each in results]
        if not wanted or self._frozen:
            return results, [f"{', '.join(wanted)} {NO_ROWS}"] * bool(wanted), True
        choice = folder.name, *wanted, *predictions

        def failed(text: str) -> tuple[Results, list[str]]:
            return results, [text]

        found = self._later(choice, failed, _with_columns, folder, results, wanted)
        shown, lines = found or failed(f"{', '.join(wanted)} {COMPUTING}")
        return shown, lines, found is not None

    def _later(
        self, key: tuple[Any, ...], failed: Callable[[str], Any], function: Any, *arguments: Any
    ) -> Any:
        """Return the result of ``function`` (of ``failed`` after an error); None until then."""
        with self._lock:
            if key not in self._found:
                self._found[key] = None
                given = (key, failed, function, *arguments)
                Thread(target=self._compute, args=given, daemon=True).start()
            return self._found[key]

    def _compute(
        self, key: tuple[Any, ...], failed: Callable[[str], Any], function: Any, *arguments: Any
    ) -> None:
        result = failed(FAILED)  # For unexpected errors, which the thread prints.
        try:
            result = self._aside.call(function, *arguments)
        except InputError as error:
            result = failed(f"{error}.")
        finally:
            with self._lock:
                self._found[key] = result


def _size(journal: Path) -> int:
    return journal.stat().st_size if journal.exists() else 0


def _details(folder: SweepFolder, frozen: bool) -> dict[str, Any]:
    source = from_folder(folder)
    found = details(source, usual_baseline(source.results))
    if frozen:
        without = {"problem": IN_PAGE, "absent": {}, "ungained": {}}
        found["tasks"] = [{**task, **without} for task in found["tasks"]]
    return {**found, "pending": ""}


def _with_columns(
    folder: SweepFolder, results: Results, names: Sequence[str]
) -> tuple[Results, list[str]]:
    from orchestrator.statistics import with_columns

    lines = list[str]()
    return with_columns(results, names, folder.storage.store(), lines.append), lines
