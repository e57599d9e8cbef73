"""Fills a tracking store with many runs at once, row for row as the shipper would write them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from mlflow.store.tracking.dbmodels.models import (
    SqlLatestMetric,
    SqlMetric,
    SqlParam,
    SqlRun,
    SqlTag,
)
from sqlalchemy import Engine, create_engine, insert

from orchestrator.storage.events import Event, from_fields
from orchestrator.storage.ledger import Ledger
from orchestrator.tracking._changes import Change, Changes
from orchestrator.tracking._tags import study_name, study_tags, trial_name, trial_tags
from orchestrator.tracking.mlflow.server import PARENT, MlflowTracker, allowed_name

TASKS = ("cifar10/resnet50/mukhoti2020", "cifar100/resnet50/mukhoti2020")
RECIPES = ("ce", "ls", "fl", "flsd", "mbls", "acls", "ce+ts", "mbls+ts", "mbls+macal", "acls+macal")
STUDIES = len(TASKS) * len(RECIPES)
PARAMETERS, METRICS = 20, 15
START = 1_700_000_000_000
RUNS_AT_ONCE = 2000

Rows = dict[type, list[dict[str, Any]]]


def sweep_events(sweep: str, runs: int, seed: int, code: str) -> Iterator[Event]:
    """Yield the journal of a finished sweep of twenty studies.

    Args:
        sweep: Its name.
        runs: Runs that it comes to, the studies' own included; a multiple of 20, at least 60.
        seed: Decides every number.
        code: Git commit.
    """
    numbers, clock = random.Random(seed), iter(range(START + seed * 10**9, 2 * START))

    def event(kind: str, **fields: Any) -> Event:
        return from_fields({"event": kind, "time": next(clock), **fields})

    provenance = {"git_commit": code, "versions": {"torch": "2.11.0"}}
    yield event(
        "sweep_started", sweep=sweep, sweep_id=f"{seed:032x}", spec={}, provenance=provenance
    )
    for study, (task, recipe) in enumerate((t, r) for t in TASKS for r in RECIPES):
        yield from _study_events(event, numbers, (seed, study), task, recipe, runs // STUDIES - 1)
    yield event("sweep_ended", status="finished")


def _study_events(
    event: Any,
    numbers: random.Random,
    place: tuple[int, int],
    task: str,
    recipe: str,
    trials: int,
) -> Iterator[Event]:
    dataset, model, protocol = task.split("/")
    study = f"{task}|{recipe}"
    yield event(
        "study_opened",
        study=study,
        task=task,
        recipe=recipe,
        trials=trials - 1,
        row=True,
        fingerprint=f"{dataset}-data",
        dataset=dataset,
        model=model,
        protocol=protocol,
        setting=f"{task}-setting",
        rule={"objective": "val_ece", "accuracy_tolerance": 0.01, "epoch": "last", "tie": "first"},
    )
    scored: list[tuple[float, str, dict[str, Any]]] = []
    for number in range(trials):
        search = number < trials - 1
        key = f"{place[0]:08x}{place[1]:08x}{number:016x}"
        configuration = {recipe: {f"p{i}": numbers.random() for i in range(PARAMETERS)}}
        if not search:
            configuration = min(scored)[2]
        yield event(
            "trial_started",
            study=study,
            number=number,
            key=key,
            role="search" if search else "seed",
            seed=0 if search else 1,
            stage="train",
            configuration=configuration,
        )
        metrics = {f"val_m{i}": numbers.random() for i in range(METRICS)}
        yield event("trial_finished", key=key, status="finished", metrics=metrics, seconds=1.0)
        objective = numbers.random()
        scored.append((objective, key, configuration))
        yield event("trial_scored", key=key, objective=objective)
    best, other = min(scored[:-1])[1], scored[-1][1]
    yield event("study_closed", study=study, chosen=best, finished=trials - 1, failed=0)
    for seed, key in enumerate((best, other)):
        figures = {f"test_{name}": numbers.random() for name in ("acc", "ece", "aece", "cwece")}
        figures["test_nll"] = numbers.random()
        yield event("evaluated", key=key, study=study, seed=seed, metrics=figures, seconds=2.0)


def fill(uri: str, sweep: str, events: Iterable[Event]) -> int:
    """Write a sweep into a database, much faster than through the tracking store.

    Args:
        uri: ``sqlite:///PATH`` or ``postgresql://...``; MLflow's tables are created where missing.
        sweep: The sweep's name: its experiment must be new.
        events: Its journal.

    Returns:
        Runs written.
    """
    tracker = MlflowTracker(uri)
    made, _ = tracker.open_experiment(sweep, Path("mlflow-artifacts"))
    experiment = tracker.client.get_experiment(made.id)
    whole, changes = Changes(), dict[str, Change]()
    for event in events:
        for change in whole.apply(event):
            if change.run in changes:
                changes[change.run].absorb(change)
            else:
                changes[change.run] = change
    ids = {run: uuid.UUID(int=random.Random(sweep + run).getrandbits(128)).hex for run in changes}
    engine, todo = create_engine(uri), iter(changes.values())
    while chunk := list(islice(todo, RUNS_AT_ONCE)):
        _insert(engine, (_rows(change, whole.ledger, ids, experiment) for change in chunk))
    engine.dispose()
    return len(changes)


def _insert(engine: Engine, found: Iterable[Rows]) -> None:
    together: Rows = {}
    for rows in found:
        for table, values in rows.items():
            together.setdefault(table, []).extend(values)
    with engine.begin() as connection:
        for table, values in together.items():
            connection.execute(insert(table), values)


def _rows(change: Change, ledger: Ledger, ids: dict[str, str], experiment: Any) -> Rows:
    run = {"run_uuid": ids[change.run]}
    trial = ledger.trials.get(change.run)
    if trial is not None:
        name, start = trial_name(trial, ledger), trial.time
        tags = trial_tags(trial, ledger) | {PARENT: ids[trial.study]}
    else:
        study = ledger.studies[change.run]
        name, start, tags = study_name(study), study.time, study_tags(study, ledger)
    points = [
        {
            **run,
            "key": p.name,
            "value": p.value,
            "timestamp": p.time,
            "step": p.step,
            "is_nan": False,
        }
        for p in change.points
    ]
    latest = {p["key"]: p for p in sorted(points, key=lambda p: (p["step"], p["timestamp"]))}
    texts = {"mlflow.runName": name, **tags, **change.tags}
    params = {allowed_name(key): value for key, value in change.params.items()}
    return {
        SqlRun: [
            {
                **run,
                "name": name,
                "source_type": "UNKNOWN",
                "source_name": "",
                "entry_point_name": "",
                "user_id": "unknown",
                "status": change.status,
                "start_time": start,
                "end_time": change.time,
                "source_version": "",
                "lifecycle_stage": "active",
                "artifact_uri": f"{experiment.artifact_location}/{ids[change.run]}/artifacts",
                "experiment_id": int(experiment.experiment_id),
            }
        ],
        SqlTag: [{**run, "key": key, "value": value} for key, value in texts.items()],
        SqlParam: [{**run, "key": key, "value": value} for key, value in params.items()],
        SqlMetric: points,
        SqlLatestMetric: list(latest.values()),
    }
