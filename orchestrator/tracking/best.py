"""Best configurations: which trial of the studies that are ranked together is best."""

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
SPARE = 50  # Runs asked for beyond those wanted, so that one page is likely to be enough.


@dataclass(frozen=True)
class TrackedTrial:
    """A finished trial as it is tracked; ``note`` names runs left out for being other code."""

    trial: Trial
    study: Study
    sweep: str
    note: str = ""

    @property
    def rank(self) -> Rank:
        """Return what it is ranked by."""
        if self.trial.objective is None:
            raise ValueError(f"trial {self.trial.key} has not been scored")
        return Rank(self.trial.objective, self.trial.number, self.study.time)

    @property
    def kept(self) -> bool:
        """Tell whether it was chosen by a rule under which a lower objective may not suffice."""
        return "keep_default" in self.study.rule and self.trial.key == self.study.chosen


@dataclass(frozen=True)
class BestConfig:
    """The best configuration of a recipe on a task.

    Attributes:
        sweep: The sweep that found it.
        run_id: Its MLflow run.
        number: The trial's number within its study.
        objective: Its validation objective, a fraction (or nats for NLL), lower is better.
        rule: What made it the best: ``objective`` (the validation metric), ``accuracy_tolerance``
            (of the guard), ``epoch`` (whose metrics count), ``tie`` (who wins it); empty for sweeps
            that did not write it down.
        fixed: Part to its parameters: what ``search.fixed`` of another sweep file takes.
        validation: Its validation metrics, fractions.
        sweep_id: Identifies the sweep for good.
        fingerprint: Hash of the data and of how they were split.
        code: Git commit that it ran with.
        started: When its study was opened, local time, ISO 8601.
        note: The runs left out because another version of the code made them; else empty.
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
        """Return everything but the note, as plain values."""
        return {name: value for name, value in self.__dict__.items() if name != "note"}

    def to_yaml(self) -> str:
        """Return it as YAML, with the block that goes below ``search:`` of a sweep file."""
        return write_mapping(self.to_dict())

    def _repr_html_(self) -> str:
        return html_table(("best configuration", ""), self.to_dict().items())

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_fixed(self) -> str:
        """Return only the ``fixed:`` block, indented for below ``search:`` of a sweep file."""
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
    """Ask the tracking server for the best configurations of a recipe on a task.

    "Best" is the lowest validation objective among finished search trials; the earlier trial wins
    a tie. What a study chose by a rule that keeps the published default comes first, though another
    trial's objective may be lower. Test metrics take no part. Studies on other data, with another
    model or protocol under the same name, or that chose by another rule are never ranked together:
    the call is refused until the filters leave one kind. Of several versions of the code the one
    that ran last counts, and ``BestConfig.note`` names those left out.

    Args:
        task: ``dataset/model/protocol``, or the task's name in the sweep file.
        recipe: Such as ``mbls+macal``.
        tracking_uri: Tracking server to ask; see ``default_tracking_uri``.
        sweep: Only trials of this sweep.
        top: How many, best first.
        since: Only studies opened then or later.
        until: Only studies opened before.
        tags: Only sweeps with these ``tags`` in their file.
        fingerprint: Only data whose hash begins so; ``any`` ranks different data together.
        code: Only code whose git commit begins so; ``any`` ranks all versions together.

    Raises:
        InputError: If there is no such task, recipe or sweep, nothing fulfils the filters, or what
            does cannot be compared; the text lists what there is.
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


def _best_config(found: TrackedTrial) -> BestConfig:
    trial, study = found.trial, found.study
    opened = datetime.fromtimestamp(study.time / 1000).astimezone()
    return BestConfig(
        task=study.task,
        recipe=study.recipe,
        sweep=found.sweep,
        run_id=trial.run_id,
        number=trial.number,
        objective=found.rank.objective,
        rule=dict(study.rule),
        fixed={part: dict(values) for part, values in trial.configuration.items()},
        validation={k: v for k, v in trial.metrics.items() if k.startswith("val_")},
        sweep_id=study.sweep_id,
        fingerprint=study.fingerprint,
        code=trial.code,
        started=opened.isoformat(timespec="seconds"),
        note=found.note,
    )


def known_studies(
    uri: str, sweep: str | None = None, task: str | None = None, recipe: str | None = None
) -> list[tuple[str, str]]:
    """Return task and recipe of every study, or of those of a sweep, a task or a recipe."""
    tracker = read_tracker(uri)
    experiments = find_experiments(tracker, sweep)
    wanted = {tag: name for tag, name in ((names.TASK, task), (names.RECIPE, recipe)) if name}
    runs = tracker.runs(RunQuery(experiments, {names.KIND: "study", **wanted}))
    found = sorted({(run.tags[names.TASK], run.tags[names.RECIPE]) for run in runs})
    if not found:
        check_known(tracker, experiments, wanted)
    return found


def best_trials(
    uri: str,
    task: str,
    recipe: str,
    sweep: str | None = None,
    top: int = 1,
    where: StudyFilter | None = None,
) -> list[TrackedTrial]:
    """Return the best search trials of ended studies, best first; see ``best_config``."""
    if top < 1:
        raise InputError(f"top={top} is outside [1, inf)")
    tracker = read_tracker(uri)
    experiments = find_experiments(tracker, sweep)
    kept, note = comparable_studies(tracker, experiments, task, recipe, where or StudyFilter())
    return _ranked(tracker, kept, top, note) if kept else []


def tracked_trial(uri: str, run_id: str) -> TrackedTrial:
    """Return one trial by the id of its run."""
    tracker = read_tracker(uri)
    try:
        run = tracker.run(run_id)
    except RefusedError as error:
        raise InputError(f"no run {run_id!r} on {redacted(uri)}: {error}") from error
    if run.tags.get(names.KIND) != "trial" or run.parent is None:
        raise InputError(f"run {run_id!r} on {redacted(uri)} is no trial of a sweep")
    if run.status != names.FINISHED or names.OBJECTIVE not in run.metrics:
        raise InputError(f"run {run_id!r} on {redacted(uri)} is no finished trial")
    parent = tracker.run(run.parent)
    return _tracked(run, TrackedStudy(study_of(parent), parent))


def _ranked(
    tracker: RunReader, chosen: Sequence[TrackedStudy], top: int, note: str
) -> list[TrackedTrial]:
    sweeps = {found.study.sweep_id: found for found in chosen}
    winners = _winners(tracker, sweeps)
    runs = {run.id: run for run in winners or ()}
    if winners is None or top > 1:
        runs |= {run.id: run for run in _search(tracker, sweeps, top)}
    best = [_tracked(run, sweeps[run.tags[names.SWEEP_ID]], note) for run in runs.values()]
    return sorted(best, key=lambda found: (not found.kept, found.rank))[:top]


def _winners(tracker: RunReader, sweeps: Mapping[str, TrackedStudy]) -> list[Run] | None:
    """Return what each study chose, which is its best trial; None if one is still open.

    The tag by which they are found is on no other run, so that the tracker need not look at those.
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
    """Return the best trials of some studies; the tracker filters, orders and limits."""
    tags = {names.STUDY: next(iter(sweeps.values())).study.name}
    experiments = sorted({found.run.experiment for found in sweeps.values()})
    found: list[Run] = []
    # Runs without an objective come last in the tracker's order. What else must hold is looked at
    # here: every further condition costs the tracker more than a few runs too many.
    page = min(top, PAGE) + SPARE
    ranked = RunQuery(experiments, tags, status=names.FINISHED, order=_ORDER, page=page)
    for run in tracker.runs(ranked):
        if names.OBJECTIVE not in run.metrics or len(found) == top:
            break
        role, sweep_id = run.tags[names.ROLE], run.tags[names.SWEEP_ID]
        if role == SEARCH and sweep_id in sweeps:
            found.append(run)
    return found


def _tracked(run: Run, found: TrackedStudy, note: str = "") -> TrackedTrial:
    return TrackedTrial(trial_of(run), found.study, found.sweep, note)
