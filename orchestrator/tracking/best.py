"""Finds the best configurations: the best trials of studies that are ranked together."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.search.choice import SEARCH, Rank
from orchestrator.storage.ledger import Study, Trial
from orchestrator.sweep.tracking_uri import default_tracking_uri
from orchestrator.tracking import _names as names
from orchestrator.tracking._comparable import (
    StudyFilter,
    TrackedStudy,
    check_known,
    comparable_studies,
)
from orchestrator.tracking._kinds import read_tracker
from orchestrator.tracking._queries import find_experiments
from orchestrator.tracking._tags import study_of, trial_of
from orchestrator.tracking.tracker import PAGE, RefusedError, Run, RunQuery, RunReader
from trainables.common.errors import InputError
from trainables.common.html import html_table
from trainables.common.paths import redacted
from trainables.common.yaml_text import write_mapping

_ORDER = (names.OBJECTIVE, names.TRIAL_NUMBER)
SPARE = 50  # Additional runs per query, so that one page usually suffices.


@dataclass(frozen=True)
class TrackedTrial:
    """A finished trial with its study, read from a tracker; for ``note`` see ``BestConfig``."""

    trial: Trial
    study: Study
    sweep: str
    note: str = ""

    @property
    def rank(self) -> Rank:
        """Return the key that sorts trials from best to worst."""
        if self.trial.objective is None:
            raise ValueError(f"trial {self.trial.key} has not been scored")
        return Rank(self.trial.objective, self.trial.number, self.study.time)

    @property
    def kept(self) -> bool:
        """Whether the study chose this trial by a rule that may keep the published default."""
        return "keep_default" in self.study.rule and self.trial.key == self.study.chosen


@dataclass(frozen=True)
class BestConfig:
    """The best configuration of a recipe on a task.

    Attributes:
        sweep: The sweep that found it.
        run_id: Id of the trial's run on the tracker.
        number: The trial's number within its study.
        objective: The trial's validation objective, a fraction (or nats for NLL); lower is better.
        rule: The rule of the choice: ``objective`` (the validation metric), ``accuracy_tolerance``
            (of the guard), ``epoch`` (whose metrics count), ``tie`` (which trial wins) and, if
            used, ``accuracy_errors``, ``keep_default`` and ``stop``; empty if unknown.
        fixed: Parameters by part, for ``search.fixed`` of another sweep file.
        validation: The trial's validation metrics: fractions, or nats for NLL.
        sweep_id: Id of the sweep; unlike the sweep's name, it is unique.
        fingerprint: Hash of the data and their splits.
        code: Git commit of the code.
        started: When the study was opened: local time, ISO 8601.
        note: Names studies that were excluded because they used another version of the code.
    """

    task: str
    recipe: str
    sweep: str
    run_id: str
    number: int
    objective: float
    rule: dict[str, str]
    fixed: dict[str, dict[str, Any]]
    validation: dict[str, float]
    sweep_id: str = ""
    fingerprint: str = ""
    code: str = ""
    started: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the note as plain values."""
        return {name: value for name, value in self.__dict__.items() if name != "note"}

    def to_yaml(self) -> str:
        """Return all fields except the note as YAML."""
        return write_mapping(self.to_dict())

    def _repr_html_(self) -> str:
        return html_table(("best configuration", ""), self.to_dict().items())

    def to_json(self) -> str:
        """Return all fields except the note as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_fixed(self) -> str:
        """Return the ``fixed:`` block, indented for ``search:`` of a sweep file."""
        block = write_mapping({"fixed": self.fixed})
        origin = f"# {self.recipe} on {self.task}: trial {self.number} of sweep {self.sweep}\n"
        return textwrap.indent(f"{origin}{block}", "  ")


def best_config(
    task: str,
    recipe: str,
    *,
    tracking_uri: str | None = None,
    sweep: str | None = None,
    top: int = 1,
    since: datetime | None = None,
    until: datetime | None = None,
    tags: Mapping[str, str] | None = None,
    fingerprint: str | None = None,
    code: str | None = None,
) -> list[BestConfig]:
    """Return the best configurations of a recipe on a task, from the tracking server.

    "Best" is the lowest validation objective among finished search trials; the trial with the lower
    number, then the older study, wins a tie. If a study's rule may keep the published default, the
    trial that it chose comes first even if another objective is lower. Test metrics are not used.
    Studies with different data, models, protocols or rules are not ranked together: the call fails
    until the filters leave one kind. If there are several versions of the code, only the latest
    counts (unless ``code`` is ``any``), and ``BestConfig.note`` lists the others. The list is empty
    if no trial has finished.

    Args:
        task: ``dataset/model/protocol``, or the task's name in the sweep file.
        recipe: For example ``mbls+macal``.
        tracking_uri: Address of the tracking server; see ``default_tracking_uri``.
        sweep: Only trials of this sweep.
        top: Number of configurations, best first.
        since: Only studies opened then or later.
        until: Only studies opened before.
        tags: Only sweeps with these ``tags`` in their file.
        fingerprint: Only data whose hash has this prefix; ``any`` ranks different data, models and
            protocols together.
        code: Only code whose git commit has this prefix; ``any`` ranks all versions together.

    Raises:
        InputError: If there is no such task, recipe or sweep, no study passes the filters, or the
            studies cannot be compared; the text lists the known ones.
    """
    where = StudyFilter(
        since=None if since is None else since.timestamp(),
        until=None if until is None else until.timestamp(),
        tags=tags or {},
        fingerprint=fingerprint,
        code=code,
    )
    runs = best_trials(tracking_uri or default_tracking_uri(), task, recipe, sweep, top, where)
    return [_best_config(run) for run in runs]


def _best_config(tracked: TrackedTrial) -> BestConfig:
    trial, study = tracked.trial, tracked.study
    opened = datetime.fromtimestamp(study.time / 1000).astimezone()
    return BestConfig(
        task=study.task,
        recipe=study.recipe,
        sweep=tracked.sweep,
        run_id=trial.run_id,
        number=trial.number,
        objective=tracked.rank.objective,
        rule=dict(study.rule),
        fixed={part: dict(values) for part, values in trial.configuration.items()},
        validation={k: v for k, v in trial.metrics.items() if k.startswith("val_")},
        sweep_id=study.sweep_id,
        fingerprint=study.fingerprint,
        code=trial.code,
        started=opened.isoformat(timespec="seconds"),
        note=tracked.note,
    )


def known_studies(
    uri: str, sweep: str | None = None, task: str | None = None, recipe: str | None = None
) -> list[tuple[str, str]]:
    """Return (task, recipe) of the studies that pass the filters, at least one.

    Raises:
        InputError: If a name is unknown, or the tracker has no studies.
    """
    tracker = read_tracker(uri)
    experiments = find_experiments(tracker, sweep)
    wanted = {tag: name for tag, name in ((names.TASK, task), (names.RECIPE, recipe)) if name}
    runs = tracker.runs(RunQuery(experiments, {names.KIND: "study", **wanted}))
    found = sorted({(run.tags[names.TASK], run.tags[names.RECIPE]) for run in runs})
    if not found:
        check_known(tracker, experiments, wanted)
        raise InputError(f"no studies on {redacted(uri)} yet; run a sweep first")
    return found


def best_trials(
    uri: str,
    task: str,
    recipe: str,
    sweep: str | None = None,
    top: int = 1,
    where: StudyFilter | None = None,
) -> list[TrackedTrial]:
    """Return the ``top`` best trials of the studies of a recipe on a task; see ``best_config``."""
    if top < 1:
        raise InputError(f"top: expected 1 or more, got {top}")
    tracker = read_tracker(uri)
    experiments = find_experiments(tracker, sweep)
    kept, note = comparable_studies(tracker, experiments, task, recipe, where or StudyFilter())
    return _ranked(tracker, kept, top, note) if kept else []


def tracked_trial(uri: str, run_id: str) -> TrackedTrial:
    """Return a finished trial by the id of its run; raise ``InputError`` for any other run."""
    tracker = read_tracker(uri)
    try:
        run = tracker.run(run_id)
    except RefusedError as error:
        raise InputError(f"no run {run_id!r} on {redacted(uri)}: {error}") from error
    if run.tags.get(names.KIND) != "trial" or run.parent is None:
        raise InputError(f"run {run_id!r} on {redacted(uri)} is not a trial of a sweep")
    if run.status != names.FINISHED or names.OBJECTIVE not in run.metrics:
        raise InputError(f"run {run_id!r} on {redacted(uri)} is not a finished trial")
    parent = tracker.run(run.parent)
    return _tracked(run, TrackedStudy(study_of(parent), parent))


def _ranked(
    tracker: RunReader, studies: Sequence[TrackedStudy], top: int, note: str
) -> list[TrackedTrial]:
    sweeps = {tracked.study.sweep_id: tracked for tracked in studies}
    winners = _winners(tracker, sweeps)
    runs = {run.id: run for run in winners or ()}
    if winners is None or top > 1:
        runs |= {run.id: run for run in _search(tracker, sweeps, top)}
    best = [_tracked(run, sweeps[run.tags[names.SWEEP_ID]], note) for run in runs.values()]
    return sorted(best, key=lambda tracked: (not tracked.kept, tracked.rank))[:top]


def _winners(tracker: RunReader, sweeps: Mapping[str, TrackedStudy]) -> list[Run] | None:
    """Return the runs of the trials that the finished studies chose.

    The result is None if a study is open or interrupted, or if such a run is missing. Only chosen
    runs have the tag of this query, so the tracker reads no others.
    """
    states = [found.run.status for found in sweeps.values()]
    if not {names.FINISHED, names.FAILED}.issuperset(states):
        return None
    experiments = {found.run.experiment for found in sweeps.values()}
    name = next(iter(sweeps.values())).study.name
    runs = [
        run
        for run in tracker.runs(RunQuery(sorted(experiments), {names.BEST_OF: name}))
        if run.tags[names.SWEEP_ID] in sweeps
    ]
    return runs if len(runs) == states.count(names.FINISHED) else None


def _search(tracker: RunReader, sweeps: Mapping[str, TrackedStudy], top: int) -> list[Run]:
    """Return the runs of the ``top`` best search trials of these studies, best first."""
    tags = {names.STUDY: next(iter(sweeps.values())).study.name}
    experiments = sorted({found.run.experiment for found in sweeps.values()})
    found: list[Run] = []
    # Runs without an objective come last in the tracker's order. Role and sweep are checked here:
    # as conditions of the query they would take longer than reading a few superfluous runs.
    page = min(top, PAGE) + SPARE
    ranked = RunQuery(experiments, tags, status=names.FINISHED, order=_ORDER, page=page)
    for run in tracker.runs(ranked):
        if names.OBJECTIVE not in run.metrics or len(found) == top:
            break
        role, sweep_id = run.tags[names.ROLE], run.tags[names.SWEEP_ID]
        if role == SEARCH and sweep_id in sweeps:
            found.append(run)
    return found


def _tracked(run: Run, study: TrackedStudy, note: str = "") -> TrackedTrial:
    return TrackedTrial(trial_of(run), study.study, study.sweep, note)
