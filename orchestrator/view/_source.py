"""What a report is made of: the results, the journal behind them, the stored predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger, Study
from orchestrator.storage.notes import read_notes
from orchestrator.storage.results import StudyResult
from orchestrator.storage.status import current_results
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.names import study_id
from orchestrator.view._search import CURVES
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore


@dataclass(frozen=True)
class ReportSource:
    """Everything stored of one sweep.

    Attributes:
        results: One a recipe and task, in the order of the table.
        history: What its journal tells; None where the journal is not at hand.
        store: Where its artifacts lie.
        runs: Run id of each trial (by key) on the tracking store, as far as known.
        notes: See ``read_notes``.
        facts: Further names and texts of its provenance.
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
        """Return the results of one task; predictions that are not in the store are left out."""
        return [self._at_hand(result) for result in self.results if result.task == task]

    def _at_hand(self, result: StudyResult) -> StudyResult:
        def there(*keys: str) -> bool:
            return all(self.store.contains(ArtifactRef("evaluate", key)) for key in keys)

        if not there(result.searched_predictions, result.default_predictions):
            result = replace(result, default_predictions="")
        return result if there(*result.predictions) else replace(result, predictions=())

    def study(self, result: StudyResult) -> Study | None:
        """Return what the journal tells of a result's study, or None if it tells nothing."""
        studies = self.history.studies if self.history else {}
        return studies.get(study_id(result.task, result.recipe))

    def stage(self, result: StudyResult) -> str:
        """Return the stage that a recipe ends with, ``train`` if nothing else is known."""
        study = self.study(result)
        stage = next((t.stage for t in study.begun.values()), "train") if study else "train"
        return "train" if stage == "given" else stage


def from_folder(folder: SweepFolder, results: Sequence[StudyResult] | None = None) -> ReportSource:
    """Gather what a sweep's folder holds, with the journal's results if none are given."""
    from orchestrator.tracking import delivered_runs

    name, store, path = folder.name, folder.storage.store(), folder.journal
    if results is not None and not path.is_file():
        return ReportSource(name, results, None, store, notes=read_notes(folder))
    history = Ledger(iterate_events(path, kinds=None), CURVES)
    found = current_results(folder, history) if results is None else results
    return ReportSource(name, found, history, store, delivered_runs(path), read_notes(folder))
