"""What a tracking store is asked: best configurations and the results of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.results import StudyResult
from orchestrator.tracking import _names as names
from orchestrator.tracking._ledger import Trial
from orchestrator.tracking._results import results
from orchestrator.tracking._server import Server
from orchestrator.tracking._tags import study_of, trial_of
from orchestrator.tracking._uri import check_tracking_uri, is_sqlite, redacted, sqlite_file
from trainables.errors import InputError

_STUDY, _TRIAL = {names.KIND: "study"}, {names.KIND: "trial"}
_BEST_FIRST = (f"metrics.{names.OBJECTIVE} ASC", f"metrics.{names.TRIAL_NUMBER} ASC")


@dataclass(frozen=True)
class BestRun:
    """A finished search trial.

    Attributes:
        run_id: Run on the tracking store.
        sweep: Name of its sweep.
        task: Task.
        recipe: Recipe.
        number: Number of the trial in its study.
        objective: Guarded validation objective; lower is better.
        metrics: Its last value of each validation metric, by its name in the journal.
        configuration: The whole chain, ``{part: {parameter: value}}``, types as they were.
        test: Test metrics without their prefix; empty unless it has been chosen.
        key: Key of the trial.
    """

    run_id: str
    sweep: str
    task: str
    recipe: str
    number: int
    objective: float
    metrics: dict[str, float]
    configuration: dict[str, Any]
    test: dict[str, float] = field(default_factory=dict)
    key: str = ""


def best_runs(
    uri: str, task: str, recipe: str, sweep: str | None = None, top: int = 1
) -> list[BestRun]:
    """Return the search trials with the best validation objectives, best first.

    The store filters, orders and limits. Among equals the trial that came first wins. Only
    finished trials that have been scored count; test metrics play no part.

    Args:
        uri: See ``check_tracking_uri``.
        task: Task.
        recipe: Recipe.
        sweep: Name of a sweep, or None for all sweeps on the store.
        top: How many at most.

    Raises:
        InputError: If the store is not there, or knows no such sweep, task or recipe.
    """
    if top < 1:
        raise InputError(f"top={top} is outside [1, inf)")
    server = _existing(uri)
    experiments = _experiments(server, sweep)
    wanted = {names.TASK: task, names.RECIPE: recipe}
    runs = server.runs(
        list(experiments.values()),
        {**_TRIAL, **wanted, names.ROLE: names.SEARCH},
        extra=[f"attributes.status = '{names.FINISHED}'"],
        order=_BEST_FIRST,
        limit=top,
    )
    # Runs without an objective come last in the store's order.
    scored = [run for run in runs if names.OBJECTIVE in run.data.metrics]
    if not scored:
        _check_known(server, list(experiments.values()), wanted)
    return [_best_run(trial_of(run), run.data.tags) for run in scored]


def study_results(uri: str, sweep: str) -> list[StudyResult]:
    """Return the studies of a sweep that are rows of its table, in the order of their opening.

    If several sweeps of that name have been run, the one started last counts.

    Raises:
        InputError: If the store is not there, or knows no such sweep.
    """
    server = _existing(uri)
    experiment = list(_experiments(server, sweep).values())
    latest = list(
        server.runs(experiment, _STUDY, order=["attributes.start_time DESC"], limit=1),
    )
    if not latest:
        return []
    ours = {names.SWEEP_ID: latest[0].data.tags[names.SWEEP_ID]}
    studies = [study_of(run) for run in server.runs(experiment, {**_STUDY, **ours})]
    chosen = _trials(server, experiment, {**ours, names.CHOSEN: "true"})
    evaluated = _trials(server, experiment, {**ours, names.EVALUATED: "true"})
    return results(sweep, studies, {trial.key: trial for trial in chosen}, evaluated)


def _trials(server: Server, experiments: Sequence[str], tags: Mapping[str, str]) -> list[Trial]:
    return [trial_of(run) for run in server.runs(experiments, {**_TRIAL, **tags})]


def _best_run(trial: Trial, tags: Mapping[str, str]) -> BestRun:
    if trial.objective is None:
        raise ValueError(f"trial {trial.key} has not been scored")
    return BestRun(
        trial.run_id,
        tags[names.SWEEP],
        tags[names.TASK],
        tags[names.RECIPE],
        trial.number,
        trial.objective,
        trial.metrics,
        trial.configuration,
        trial.test,
        trial.key,
    )


def _existing(uri: str) -> Server:
    check_tracking_uri(uri)
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise InputError(f"no tracking database at {file}; `calsweep sync` builds it")
    if file is not None and not is_sqlite(file):
        raise InputError(f"{file} is no SQLite database; name another file")
    return Server(uri)


def _experiments(server: Server, sweep: str | None) -> dict[str, str]:
    """Return experiment ids by the name of their sweep."""
    known = {found.name: found.experiment_id for found in server.experiments()}
    if sweep is None:
        return known
    if sweep not in known:
        raise InputError(f"no sweep {sweep!r} on {redacted(server.uri)}; {_there_are(known)}")
    return {sweep: known[sweep]}


def _check_known(server: Server, experiments: Sequence[str], wanted: Mapping[str, str]) -> None:
    """Refuse a task, or a recipe on that task, for which there has never been a study."""
    so_far: dict[str, str] = {}
    for tag, value in wanted.items():
        runs = server.runs(experiments, {**_STUDY, **so_far})
        known = {run.data.tags[tag] for run in runs}
        if value not in known:
            what = tag.removeprefix(names.PREFIX)
            where = "".join(f" for {task!r}" for task in so_far.values())
            raise InputError(
                f"no {what} {value!r}{where} on {redacted(server.uri)}; {_there_are(known)}"
            )
        so_far[tag] = value


def _there_are(known: Iterable[str]) -> str:
    return f"there are: {', '.join(sorted(known)) or 'none'}"
