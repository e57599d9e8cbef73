"""Counts the trials that a sweep would compute or reuse, without computing or writing."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.cluster.size import ClusterSize
from orchestrator.running.data import DataPreview, preview_data
from orchestrator.search.state import SweepState
from orchestrator.search.study_state import TrialSpec, setting_of
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.plan import Plan, resources_key
from orchestrator.sweep.spec import SweepSpec
from orchestrator.tracking import stage_seconds
from trainables.common.errors import InputError
from trainables.common.paths import require_writable
from trainables.common.stages import EVERY_STAGE
from trainables.data import PreparedData
from trainables.plugins import load_plugins
from trainables.stages import validation_rows, with_objective
from trainables.store.artifacts import ArtifactStore

IDENTITY = ("name", "plugins", "tasks", "recipes", "variants", "search", "seeds")


@dataclass(frozen=True)
class StagePreview:
    """The trials of one stage of one task.

    Attributes:
        reused: Trials whose outcome is known from an earlier run or another sweep.
        seconds: Time of one trial in earlier runs on the tracking server; None if unknown, or if
            no trial is left to compute.
        dropped: Trials to compute again because they are stored without their weights.
    """

    task: str
    stage: str
    computed: int
    reused: int
    seconds: float | None
    dropped: int = 0

    @property
    def hours(self) -> float | None:
        """Return the hours of the trials to compute, one after the other; None if unknown."""
        if not self.computed:
            return 0.0
        return None if self.seconds is None else self.computed * self.seconds / 3600


def preview(plan: Plan, data: DataPreview | None = None) -> list[StagePreview]:
    """Count the trials of a sweep by task and stage, and those whose outcomes are stored.

    A study suggests trials from the results of earlier ones. Trials that need a result that is not
    stored are counted in ``computed``, which is therefore an upper bound. Without ``data`` the
    prepared data is looked up. Nothing is written.
    """
    prepared = (preview_data(plan.spec) if data is None else data).prepared
    reused, dropped = _stored(plan, prepared)
    planned: Counter[tuple[str, str]] = Counter()
    for study in plan:
        planned[study.task.id, study.stage] += study.trials + len(plan.spec.all_seeds) - 1
    return [
        StagePreview(
            task,
            stage,
            count - reused[task, stage],
            reused[task, stage],
            _seconds(plan.spec, task, stage, prepared) if count > reused[task, stage] else None,
            dropped[task, stage],
        )
        for (task, stage), count in sorted(
            planned.items(), key=lambda entry: (entry[0][0], EVERY_STAGE.index(entry[0][1]))
        )
    ]


def refusal(spec: SweepSpec) -> str:
    """Return why a sweep cannot be run in its folder, or "". Its plugins are loaded afterwards."""
    folder = SweepFolder.of(spec)
    if not folder.spec_file.is_file():
        return _unwritable(folder)
    now = _identity(spec.model_copy(update={"plugins": spec.used_plugins}))
    pinned = spec.pinned
    before = _identity(folder.storage.load_spec(spec.name))
    load_plugins(pinned, installed=True)
    for key in IDENTITY:
        if before[key] != now[key]:
            return (
                f"sweep {spec.name!r} exists in {folder.path} with another `{key}`; "
                "give this one another name, or run the sweep file with --fresh"
            )
    return ""


def _unwritable(folder: SweepFolder) -> str:
    try:
        require_writable(folder.path, "storage")
    except InputError as error:
        return str(error)
    return ""


def _identity(spec: SweepSpec) -> dict[str, Any]:
    """Return the fields that identify a sweep; suites and paths of plugins may change."""
    ignored = {"tasks": {"__all__": {"suites"}}, "plugins": {"__all__": {"path"}}}
    return spec.model_dump(mode="json", include=set(IDENTITY), exclude=ignored)


def at_once(plan: Plan, size: ClusterSize) -> dict[str, int]:
    """Return the most concurrent trials of each stage on a cluster, by its key in ``resources``."""
    shares = plan.shares()
    return {key: min(count, size.room(shares[key])) for key, count in plan.at_once().items()}


def fewest_hours(plan: Plan, stages: Iterable[StagePreview], size: ClusterSize) -> float | None:
    """Return a lower bound of a sweep's hours on a cluster; None if a stage's time is unknown."""
    shares, most = plan.shares(), at_once(plan, size)
    busy: dict[str, float] = defaultdict(float)
    for stage in stages:
        if stage.hours is None:
            return None
        key = resources_key(stage.stage)
        busy["cpu"] += stage.hours * shares[key].cpu / (size.nodes * size.cpus)
        if shares[key].gpu:
            busy["gpu"] += stage.hours * shares[key].gpu / (size.nodes * size.gpus)
        busy["trials"] += stage.hours / (plan.spec.resources.concurrent or math.inf)
        busy[key] += stage.hours / most[key]
        busy[f"one {stage.task}"] += (stage.seconds or 0.0) / 3600
    return max(busy.values(), default=0.0)


def _seconds(
    spec: SweepSpec, name: str, stage: str, data: Mapping[str, PreparedData]
) -> float | None:
    task = next(task for task in spec.tasks if task.id == name)
    found = data.get(task.data_name(spec.all_seeds[0]))
    if found is None:
        return None
    return stage_seconds(spec.tracking_uri, name, setting_of(task, found), stage)


def _stored(
    plan: Plan, data: Mapping[str, PreparedData]
) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Count by task and stage the stored outcomes, and the outcomes stored without weights."""
    seeds = plan.spec.all_seeds
    there = {t.id for t in plan.spec.tasks if all(t.data_name(seed) in data for seed in seeds)}
    known = Plan(plan.spec, tuple(study for study in plan if study.task.id in there))
    store = Storage.of(plan.spec).store().reader()
    past = read_ledger(SweepFolder.of(plan.spec).journal)
    state = SweepState(
        known,
        past.sweep_id,
        data,
        lambda event: None,
        past,
        store.contains,
        partial(validation_rows, store),
    )
    dropped: Counter[tuple[str, str]] = Counter()
    while (trial := state.next_trial()) is not None:
        study = state.studies[trial.study].plan
        dropped[study.task.id, study.stage] += store.is_dropped(trial.request.ref)
        metrics = _stored_metrics(store, trial, state.studies[trial.study].rule.objective)
        if metrics is not None:
            key = trial.request.key()
            state.record(trial, trial.ending("finished", metrics, artifact=key))
    counts: Counter[tuple[str, str]] = Counter()
    for studied in state.studies.values():
        counts[studied.plan.task.id, studied.plan.stage] += len(studied.outcomes)
    return counts, dropped


def _stored_metrics(
    store: ArtifactStore, trial: TrialSpec, objective: str
) -> dict[str, float] | None:
    """Return the stored metrics of a trial, including the objective; None if it is not stored."""
    ref = trial.request.ref
    if not store.contains(ref):
        return None
    metrics = store.metrics(ref)
    if objective in metrics:
        return metrics
    # An outcome that was stored for another objective must be read, which checks it for damage.
    found = store.find(ref)
    return None if found is None else with_objective(metrics, objective, found)
