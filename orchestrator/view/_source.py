"""The content of a report: results, journal and stored predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger, Study
from orchestrator.storage.notes import read_notes
from orchestrator.storage.results import StudyResult
from orchestrator.storage.status import current_results
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.names import study_id
from orchestrator.view._search import CURVES
from trainables.store.artifacts import ArtifactStore


@dataclass(frozen=True)
class ReportSource:
    """The stored data of one sweep.

    Attributes:
        results: One per recipe and task, in the order of the table.
        history: The ledger of the sweep's journal; None without a journal.
        store: The storage's artifacts.
        runs: Maps trial keys to run ids on the tracking server, as far as known.
        notes: See ``read_notes``.
        facts: Additional provenance, as names and texts.
    """

    name: str
    results: Sequence[StudyResult]
    history: Ledger | None
    store: ArtifactStore
    runs: dict[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()

    @property
    def tasks(self) -> list[str]:
        """Return the tasks, in order."""
        return list(dict.fromkeys(result.task for result in self.results))

    def of_task(self, task: str) -> list[StudyResult]:
        """Return the results of one task."""
        return [result for result in self.results if result.task == task]

    def study(self, result: StudyResult) -> Study | None:
        """Return the study of a result; None if the journal does not have it."""
        studies = self.history.studies if self.history else {}
        return studies.get(study_id(result.task, result.recipe))

    def stage(self, result: StudyResult) -> str:
        """Return the last stage of a recipe; ``train`` if it is unknown or for recipe ``given``."""
        study = self.study(result)
        stage = next((t.stage for t in study.begun.values()), "train") if study else "train"
        return "train" if stage == "given" else stage


def from_folder(folder: SweepFolder, results: Sequence[StudyResult] | None = None) -> ReportSource:
    """Read the data of a sweep from its folder; by default ``results`` come from its journal."""
    from orchestrator.tracking import delivered_runs

    name, store, path = folder.name, folder.storage.store(), folder.journal
    if results is not None and not path.is_file():
        return ReportSource(name, results, None, store, notes=read_notes(folder))
    history = Ledger(iterate_events(path, kinds=None), CURVES)
    found = current_results(folder, history) if results is None else results
    return ReportSource(name, found, history, store, delivered_runs(path), read_notes(folder))
