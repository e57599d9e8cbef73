"""What a tracking store is asked: the results of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.results import StudyResult
from orchestrator.tracking import _names as names
from orchestrator.tracking._ledger import Trial
from orchestrator.tracking._results import results
from orchestrator.tracking._server import Server
from orchestrator.tracking._store import existing, experiments_of
from orchestrator.tracking._tags import study_of, trial_of

__all__ = ["study_results"]


def study_results(uri: str, sweep: str, sweep_id: str | None = None) -> list[StudyResult]:
    """Return the studies of a sweep that are rows of its table, in the order of their opening.

    Several sweeps may have borne the name, as when a storage was thrown away and the tracking
    server was not. They are never mixed: without ``sweep_id`` the one started last counts, and
    ``StudyResult.sweep_id``, ``code`` and ``run_ids`` say which.

    The store is asked for runs by tags that no others bear, so that what an answer costs depends
    on the rows of the table, not on how many trials there were.

    Args:
        uri: See ``check_tracking_uri``.
        sweep: The sweep's name.
        sweep_id: Which of the sweeps of that name; the one started last if left out.

    Raises:
        InputError: If the store is not there, or knows no such sweep.
    """
    server = existing(uri)
    experiment = list(experiments_of(server, sweep).values())
    rows = [study_of(run) for run in server.runs(experiment, {names.ROW: names.yes(True)})]
    if not rows:
        return []
    wanted = sweep_id or max(rows, key=lambda study: study.opened).sweep_id
    chosen = _trials(server, experiment, names.CHOSEN, wanted)
    evaluated = _trials(server, experiment, names.EVALUATED, wanted)
    ours = [study for study in rows if study.sweep_id == wanted]
    return results(sweep, ours, {trial.key: trial for trial in chosen}, evaluated)


def _trials(server: Server, experiments: Sequence[str], tag: str, sweep_id: str) -> list[Trial]:
    runs = server.runs(experiments, {tag: names.yes(True)})
    return [trial_of(run) for run in runs if run.data.tags[names.SWEEP_ID] == sweep_id]
