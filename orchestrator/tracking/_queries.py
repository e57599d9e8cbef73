"""Queries to a tracker: the results of a sweep, and the duration of stages."""

import statistics
from collections.abc import Iterable, Sequence
from itertools import islice

from orchestrator.storage.ledger import Trial
from orchestrator.storage.results import StudyResult, table_rows
from orchestrator.sweep.tracking_uri import elsewhere, sqlite_file
from orchestrator.tracking import _names as names
from orchestrator.tracking._kinds import open_tracker, ping, read_tracker
from orchestrator.tracking._tags import study_of, trial_of
from orchestrator.tracking.mlflow.sqlite import undelivered
from orchestrator.tracking.tracker import RunQuery, RunReader
from trainables.common.errors import InputError
from trainables.common.paths import ELSEWHERE, redacted

RECENT = 50  # Maximum number of trials in the median.
MOST = 1000  # Maximum number of runs that are searched for these trials.


def study_results(uri: str, sweep: str, sweep_id: str | None = None) -> list[StudyResult]:
    """Return the studies of a sweep that are rows of its table, in the order of opening.

    Several sweeps may have the same name, for example after their storage was deleted. They are
    never mixed: without ``sweep_id``, the sweep with the study opened last counts, and
    ``StudyResult.sweep_id`` names it. The queries select few runs by their tags, so their cost does
    not grow with the number of trials.
    """
    tracker = read_tracker(uri)
    experiment = find_experiments(tracker, sweep)
    query = RunQuery(experiment, {names.ROW: names.yes(True)})
    rows = [study_of(run) for run in tracker.runs(query)]
    if not rows:
        return []
    wanted = sweep_id or max(rows, key=lambda study: study.time).sweep_id
    chosen = _trials(tracker, experiment, names.CHOSEN, wanted)
    evaluated = _trials(tracker, experiment, names.EVALUATED, wanted)
    ours = [study for study in rows if study.sweep_id == wanted]
    return table_rows(sweep, ours, {trial.key: trial for trial in chosen}, evaluated)


def find_experiments(tracker: RunReader, sweep: str | None) -> list[str]:
    """Return the id of a sweep's experiment, or all ids for None; refuse an unknown sweep."""
    known = tracker.sweeps()
    if sweep is None:
        return list(known.values())
    if sweep not in known:
        if fault := open_tracker(tracker.uri).deletion(sweep):
            raise InputError(fault)
        if remedy := undelivered(tracker.uri, sweep):
            raise InputError(f"sweep {sweep!r} has not reached {redacted(tracker.uri)}; {remedy}")
        hint = elsewhere(tracker.uri)
        hint = f" {hint}" if hint != ELSEWHERE or sqlite_file(tracker.uri) else ""
        raise InputError(f"no sweep {sweep!r} on {redacted(tracker.uri)}{hint}; {there_are(known)}")
    return [known[sweep]]


def there_are(known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the list of known names."""
    return f"there are: {', '.join(sorted(known)) or 'none'}"


def _trials(tracker: RunReader, experiments: Sequence[str], tag: str, sweep_id: str) -> list[Trial]:
    runs = tracker.runs(RunQuery(experiments, {tag: names.yes(True)}))
    return [trial_of(run) for run in runs if run.tags[names.SWEEP_ID] == sweep_id]


def stage_seconds(uri: str, task: str, setting: str, stage: str) -> float | None:
    """Return the median seconds of a stage's last computed trials on a task, over all sweeps.

    Only trials of studies with this ``setting`` count. None if there are none, or the tracker does
    not answer.
    """
    # This is only an estimate: an absent server must not delay a plan.
    if not ping(uri)[0]:
        return None
    try:
        tracker = read_tracker(uri)
    except InputError:
        return None  # The first sweep creates the tracker.
    sweeps = find_experiments(tracker, None)
    of_setting = {names.KIND: "study", names.TASK: task, names.SETTING: setting}
    studies = {run.id for run in tracker.runs(RunQuery(sweeps, of_setting))}
    if not studies:
        return None
    computed = {names.KIND: "trial", names.TASK: task, names.STAGE: stage, names.REUSED: "false"}
    query = RunQuery(sweeps, computed, status=names.FINISHED, page=RECENT)
    trials = islice(tracker.runs(query), MOST)
    recent = islice((run for run in trials if run.parent in studies), RECENT)
    known = [run.metrics[names.SECONDS] for run in recent if names.SECONDS in run.metrics]
    return statistics.median(known) if known else None
