"""What a report is made of: the results, the journal behind them, the stored predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator._history import History, read_history
from orchestrator.journal import read_events, study_id
from orchestrator.results import StudyResult
from trainables.artifacts import ArtifactStore

__all__ = ["ReportSource", "from_folder"]


@dataclass(frozen=True)
class ReportSource:
    """What is known of one sweep.

    Attributes:
        name: The sweep's name.
        results: One a recipe and task, in the order of the table.
        history: What its journal tells; None where the journal is not at hand.
        store: Where its artifacts lie.
        runs: Run id of each trial (by key) on the tracking store, as far as known.
    """

    name: str
    results: Sequence[StudyResult]
    history: History | None
    store: ArtifactStore
    runs: dict[str, str] = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        """Return the tasks, in order."""
        return list(dict.fromkeys(result.task for result in self.results))

    def of_task(self, task: str) -> list[StudyResult]:
        """Return the results of one task; predictions that are not in the store are left out."""
        return [self._at_hand(result) for result in self.results if result.task == task]

    def _at_hand(self, result: StudyResult) -> StudyResult:
        there = all(self.store.contains("evaluate", key) for key in result.predictions)
        return result if there else replace(result, predictions=())

    def stage(self, result: StudyResult) -> str:
        """Return the stage that a recipe ends with, ``train`` if that is not known."""
        if self.history is None:
            return "train"
        study = self.history.studies.get(study_id(result.task, result.recipe))
        trials = list(study.trials.values()) if study else []
        return trials[0].stage if trials else "train"


def from_folder(
    name: str, folder: Path, store: ArtifactStore, results: Sequence[StudyResult] | None = None
) -> ReportSource:
    """Gather what a sweep's folder holds.

    Args:
        name: The sweep's name.
        folder: ``STORAGE/sweeps/NAME``; where it has no journal, the results must be given.
        store: The artifacts of that storage.
        results: The sweep's results; None for those of the journal.

    Raises:
        InputError: If the journal is damaged, or missing though no results are given.
    """
    from orchestrator.run import JOURNAL
    from orchestrator.tracking import delivered_runs, results_from_journal

    path = folder / JOURNAL
    if results is not None and not path.is_file():
        return ReportSource(name, results, None, store)
    events, _ = read_events(path)
    found = results_from_journal(events) if results is None else results
    return ReportSource(name, found, read_history(events), store, delivered_runs(path))
