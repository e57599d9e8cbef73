"""Best configurations: which studies are comparable, and which of their trials is best."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.journal import study_id
from orchestrator.tracking import _names as names
from orchestrator.tracking._ledger import Study, Trial
from orchestrator.tracking._server import PAGE as WHOLE
from orchestrator.tracking._server import RefusedError, Server
from orchestrator.tracking._store import check_known, existing, experiments_of
from orchestrator.tracking._tags import study_of, trial_of
from trainables.addresses import redacted
from trainables.errors import InputError

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["ANY", "BestRun", "Where", "best_runs", "tracked_run"]

ANY = "any"
"""As a filter of fingerprint or code: rank different ones together."""

_ORDER = (
    f"metrics.{names.OBJECTIVE} ASC",
    f"metrics.{names.TRIAL_NUMBER} ASC",
    "attributes.start_time ASC",
)
_FINISHED = (f"attributes.status = '{names.FINISHED}'",)
_SHOWN = 12  # Characters of a hash in a message.
PAGE = 50  # Runs asked for beyond those wanted, so that one page is likely to be enough.


@dataclass(frozen=True)
class Where:
    """Which studies count.

    Attributes:
        since: Only studies opened at this time (seconds since 1970) or later.
        until: Only studies opened before this time.
        tags: Only studies of sweeps with these tags.
        fingerprint: Only studies whose data's hash begins so; ``any`` to rank studies on different
            data, models or protocols together.
        code: Only studies whose git commit begins so; ``any`` to rank all versions together.
    """

    since: float | None = None
    until: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str | None = None
    code: str | None = None

    def holds(self, study: Study, tags: Mapping[str, str]) -> bool:
        """Tell whether a study counts."""
        opened = study.opened / 1000
        return (
            (self.since is None or opened >= self.since)
            and (self.until is None or opened < self.until)
            and all(tags.get(name) == value for name, value in self.tags.items())
            and _begins(study.fingerprint, self.fingerprint)
            and _begins(study.code, self.code)
        )

    def __str__(self) -> str:
        """Return the conditions as options of the command."""
        days = {"since": self.since, "until": None if self.until is None else self.until - 1}
        shown = [f"--{name} {_day(value)}" for name, value in days.items() if value is not None]
        shown += [f"--tag {name}={value}" for name, value in self.tags.items()]
        prefixes = {"fingerprint": self.fingerprint, "code": self.code}
        shown += [f"--{name} {value}" for name, value in prefixes.items() if value]
        return " ".join(shown)


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
        sweep_id: Identifies its sweep for good.
        fingerprint: Hash of the data as split.
        code: Git commit that it ran with; where a sweep was resumed with other code, that of the
            trial.
        started: When its study was opened, seconds since 1970.
        rule: How a study of that sweep chooses.
        note: What was left out because it is another version of the code; else empty.
        stage: Stage that it computed.
        seed: Its seed.
        artifact: Key of the outcome; empty for sweeps that did not write it down.
        model: Name of the network.
        origin: What else must be known to compute it again; see ``orchestrator.journal``.
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
    sweep_id: str = ""
    fingerprint: str = ""
    code: str = ""
    started: float = 0.0
    rule: dict[str, str] = field(default_factory=dict)
    note: str = ""
    stage: str = ""
    seed: int = 0
    artifact: str = ""
    model: str = ""
    origin: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    """A study, its sweep's name, its tags and its experiment."""

    study: Study
    sweep: str
    tags: Mapping[str, str]
    experiment: str


def best_runs(
    uri: str,
    task: str,
    recipe: str,
    sweep: str | None = None,
    top: int = 1,
    where: Where | None = None,
) -> list[BestRun]:
    """Return the search trials with the best validation objectives, best first.

    Only finished trials that have been scored count; among equals the trial that came first in its
    study, then the study that came first, wins. Test metrics play no part.

    Studies without a finished trial, such as interrupted ones, do not count. The others are ranked
    together only if they are comparable: those on other data, with another model or protocol under
    the same name, or that chose by another rule are refused until one is asked for. Of several
    versions of the code the one of the latest study counts, and ``note`` says so.

    Args:
        uri: See ``check_tracking_uri``.
        task: Task.
        recipe: Recipe.
        sweep: Name of a sweep, or None for all sweeps on the store.
        top: How many at most.
        where: Which studies count; all if left out.

    Raises:
        InputError: If the store is not there, or knows no such sweep, task or recipe; if no study
            fulfils ``where``; or if those that do cannot be compared.
    """
    if top < 1:
        raise InputError(f"top={top} is outside [1, inf)")
    server, where = existing(uri), where or Where()
    experiments = list(experiments_of(server, sweep).values())
    every = _studies(server, experiments, task, recipe)
    kept = [found for found in every if where.holds(found.study, found.tags)]
    if not kept:
        raise InputError(
            f"no study of {recipe!r} on {task!r} on {redacted(uri)} fulfils {where}; there are: "
            + _listing(every, _origin)
        )
    kept = [found for found in kept if found.study.chosen or found.study.finished]
    if not kept:
        return []
    if where.fingerprint != ANY:
        _require_one(kept, _same_setting, _data, "ask for one with --fingerprint or --sweep")
    _require_one(kept, _rule, _rule, "ask for one with --sweep, --tag, --since or --until")
    chosen, note = (kept, "") if where.code == ANY else _latest_code(kept)
    return _ranked(server, chosen, top, note)


def tracked_run(uri: str, run_id: str) -> BestRun:
    """Return one trial by the id of its run.

    Args:
        uri: See ``check_tracking_uri``.
        run_id: The run.

    Raises:
        InputError: If there is no such run on the store, or it is no finished trial.
    """
    server = existing(uri)
    try:
        run = server.run(run_id)
    except RefusedError as error:
        raise InputError(f"no run {run_id!r} on {redacted(uri)}: {error}") from error
    tags = run.data.tags
    if tags.get(names.KIND) != "trial" or names.PARENT not in tags:
        raise InputError(f"run {run_id!r} on {redacted(uri)} is no trial of a sweep")
    if run.info.status != names.FINISHED or names.OBJECTIVE not in run.data.metrics:
        raise InputError(f"run {run_id!r} on {redacted(uri)} is no finished trial")
    return _best_run(run, _found(server.run(tags[names.PARENT])), "")


def _found(run: Run) -> _Found:
    tags = run.data.tags
    return _Found(study_of(run), tags[names.SWEEP], tags, run.info.experiment_id)


def _studies(server: Server, experiments: Sequence[str], task: str, recipe: str) -> list[_Found]:
    # Only studies bear the first tag: a store looks at few runs where it starts from that.
    only = (f"tags.`{names.TRIALS}` != ''",)
    runs = server.runs(experiments, {names.STUDY: study_id(task, recipe)}, only)
    found = [_found(run) for run in runs]
    if not found:
        check_known(server, experiments, {names.TASK: task, names.RECIPE: recipe})
    return sorted(found, key=lambda entry: entry.study.opened)


def _ranked(server: Server, chosen: Sequence[_Found], top: int, note: str) -> list[BestRun]:
    sweeps = {found.study.sweep_id: found for found in chosen}
    runs = _winners(server, sweeps) if top == 1 else None
    if runs is None:
        runs = _search(server, sweeps, top)
    best = sorted(
        (_best_run(run, sweeps[run.data.tags[names.SWEEP_ID]], note) for run in runs),
        key=lambda run: (run.objective, run.number, run.started),
    )
    return best[:top]


def _winners(server: Server, sweeps: Mapping[str, _Found]) -> list[Run] | None:
    """Return what each study chose, which is its best trial; None if one is still open.

    The tag by which they are found is on no other run, so that the store need not look at those.
    """
    studies = [found.study for found in sweeps.values()]
    if any(study.status not in (names.FINISHED, names.FAILED) for study in studies):
        return None
    experiments = {found.experiment for found in sweeps.values()}
    runs = [
        run
        for run in server.runs(sorted(experiments), {names.BEST_OF: studies[0].name})
        if run.data.tags[names.SWEEP_ID] in sweeps
    ]
    complete = len(runs) == sum(study.status == names.FINISHED for study in studies)
    return runs if complete else None


def _search(server: Server, sweeps: Mapping[str, _Found], top: int) -> list[Run]:
    """Return the best trials of some studies; the store filters, orders and limits."""
    tags = {names.STUDY: next(iter(sweeps.values())).study.name}
    experiments = sorted({found.experiment for found in sweeps.values()})
    found: list[Run] = []
    # Runs without an objective come last in the store's order. What else must hold is looked at
    # here: every further condition costs the store more than a few runs too many.
    for run in server.runs(experiments, tags, _FINISHED, _ORDER, page=min(top, WHOLE) + PAGE):
        if names.OBJECTIVE not in run.data.metrics or len(found) == top:
            break
        role, sweep_id = run.data.tags[names.ROLE], run.data.tags[names.SWEEP_ID]
        if role == names.SEARCH and sweep_id in sweeps:
            found.append(run)
    return found


def _best_run(run: Run, found: _Found, note: str) -> BestRun:
    trial: Trial = trial_of(run)
    if trial.objective is None:
        raise ValueError(f"trial {trial.key} has not been scored")
    return BestRun(
        trial.run_id,
        found.sweep,
        found.study.task,
        found.study.recipe,
        trial.number,
        trial.objective,
        trial.metrics,
        trial.configuration,
        trial.test,
        trial.key,
        sweep_id=found.study.sweep_id,
        fingerprint=found.study.fingerprint,
        code=trial.code,
        started=found.study.opened / 1000,
        rule=found.study.rule,
        note=note,
        stage=trial.stage,
        seed=trial.seed,
        artifact=trial.artifact,
        model=found.study.model,
        origin=found.study.origin,
    )


def _latest_code(kept: Sequence[_Found]) -> tuple[list[_Found], str]:
    """Return the studies of the code that ran last, and what to tell about the others."""
    code = kept[-1].study.code
    same = [found for found in kept if found.study.code == code]
    others = [found for found in kept if found.study.code != code]
    if not others:
        return same, ""
    return same, (
        f"from code {_short(code)}, the latest; left out: {_listing(others, _version)}; "
        "ask with --code, or --code any for all"
    )


def _require_one(kept: Sequence[_Found], key: Any, describe: Any, remedy: str) -> None:
    if len({key(found) for found in kept}) > 1:
        study = kept[0].study
        raise InputError(
            f"studies of {study.recipe!r} on {study.task!r} differ and cannot be ranked together: "
            f"{_listing(kept, describe)}; {remedy}"
        )


def _listing(kept: Sequence[_Found], describe: Any) -> str:
    """Return what there is, each kind with the sweeps it comes from."""
    sweeps: dict[str, list[str]] = {}
    for found in kept:
        sweeps.setdefault(describe(found), []).append(found.sweep)
    parts = []
    for kind, known in sweeps.items():
        distinct = list(dict.fromkeys(known))
        more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
        parts.append(f"{kind} ({', '.join(distinct[:3])}{more})")
    return "; ".join(parts)


def _same_setting(found: _Found) -> tuple[str, str]:
    return found.study.fingerprint, found.study.setting


def _data(found: _Found) -> str:
    study = found.study
    return f"fingerprint {_short(study.fingerprint)}, {study.model} by {study.protocol}"


def _rule(found: _Found) -> str:
    rule = found.study.rule
    if not rule:
        return "rule unknown"
    return f"{rule['objective']} with accuracy tolerance {rule['accuracy_tolerance']}"


def _version(found: _Found) -> str:
    return f"code {_short(found.study.code)} of {_day(found.study.opened / 1000)}"


def _origin(found: _Found) -> str:
    return f"{_version(found)} on data {_short(found.study.fingerprint)}"


def _short(text: str) -> str:
    mark = "-dirty" if text.endswith("-dirty") else ""
    return text[:_SHOWN] + mark if text else "unknown"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _begins(text: str, prefix: str | None) -> bool:
    return prefix in (None, ANY) or text.startswith(str(prefix))
