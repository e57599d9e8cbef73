"""The one look at test data, in a process that no search trial ever ran in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from orchestrator._state import Chosen, StudyState, SweepState
from orchestrator.journal import TEST_PREFIX
from trainables.artifacts import Artifact, ArtifactStore
from trainables.data import PreparedData
from trainables.engine import trial_device
from trainables.errors import InputError
from trainables.metrics import reliability_curve, reliability_diagram
from trainables.stages import evaluate_on_test
from trainables.suites import SuiteData, evaluate_suite, find_suite, pooled, suite_directory

__all__ = ["Evaluation", "evaluate", "measured", "pending_evaluations"]


@dataclass(frozen=True)
class Evaluation:
    """One chosen configuration and seed to be measured on test data.

    Attributes:
        key: The trial's key.
        study: The study's name.
        task: The task.
        recipe: The recipe.
        seed: The seed.
        stage: Stage of the chosen artifact.
        artifact: Its key.
        data: Directory of the prepared data.
        configuration: The whole chain, part to its parameters.
        objective: The validation objective that it was chosen for.
        suites: Label of each suite to the directory where it is stored.
    """

    key: str
    study: str
    task: str
    recipe: str
    seed: int
    stage: str
    artifact: str
    data: str
    configuration: dict[str, dict[str, Any]]
    objective: float
    suites: Mapping[str, str] = field(default_factory=dict)


def pending_evaluations(state: SweepState) -> Iterator[Evaluation]:
    """Yield what is to be measured on test data; to be called once every study has chosen."""
    root = state.plan.spec.data_root
    for study in state.studies.values():
        if study.plan.row:
            for chosen in study.seeds.values():
                if chosen is not None:
                    yield _evaluation(study, chosen, root)


def measured(job: Evaluation, events: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether a journal's events hold all metrics of a configuration, suites included."""
    names = {
        name
        for event in events
        if event["event"] == "evaluated" and event["key"] == job.key
        for name in event["metrics"]
    }
    return bool(names) and all(
        any(name.startswith(f"{TEST_PREFIX}{label}/") for name in names) for label in job.suites
    )


def _evaluation(study: StudyState, chosen: Chosen, root: str) -> Evaluation:
    data = chosen.trial.request.data
    return Evaluation(
        key=chosen.trial.key,
        study=study.plan.id,
        task=study.plan.task.id,
        recipe=study.plan.recipe.name,
        seed=chosen.trial.request.seed,
        stage=chosen.trial.request.stage,
        artifact=chosen.outcome.artifact,
        data=data,
        configuration={part: dict(v) for part, v in chosen.trial.configuration.items()},
        objective=chosen.objective,
        suites={
            find_suite(name, root).label: str(suite_directory(name, root, PreparedData.open(data)))
            for name in study.plan.task.suites
        },
    )


def evaluate(storage: str, folder: str, job: Evaluation, gpus: float = 0.0) -> dict[str, Any]:
    """Measure one configuration and return the ``evaluated`` event for the journal.

    Args:
        storage: Root of the artifact store.
        folder: Where the reliability diagram and the configuration are written.
        job: What to measure.
        gpus: GPUs that this process was given; without one it computes on the CPU.

    Raises:
        InputError: If an artifact or a suite is missing or damaged, or the folder cannot be
            written.
    """
    store, data, device = (
        ArtifactStore(Path(storage)),
        PreparedData.open(job.data),
        trial_device(gpus),
    )
    metrics, artifact = evaluate_on_test(store, job.stage, job.artifact, data, device)
    metrics |= _on_suites(job, store, data, device)
    target = Path(folder) / job.task / job.recipe / f"seed-{job.seed}"
    try:
        written = _write_reports(target, job, artifact)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error}") from error
    return {
        "event": "evaluated",
        "key": job.key,
        "study": job.study,
        "seed": job.seed,
        "metrics": {f"{TEST_PREFIX}{name}": value for name, value in metrics.items()},
        "predictions": artifact.key,
        "seconds": chain_seconds(store, job.stage, job.artifact),
        "artifacts": {path.name: str(path) for path in written},
    }


def _on_suites(
    job: Evaluation, store: ArtifactStore, data: PreparedData, device: torch.device
) -> dict[str, float]:
    """Return the metrics of every suite, and their means over suites that belong together."""
    metrics: dict[str, float] = {}
    for directory in job.suites.values():
        metrics |= evaluate_suite(store, job.stage, job.artifact, data, directory, device)[0]
    pools = {label: SuiteData.open(place).suite.pool for label, place in job.suites.items()}
    return {**metrics, **pooled(metrics, pools)}


def chain_seconds(store: ArtifactStore, stage: str | None, key: str | None) -> float | None:
    """Return what a chain of stages cost to compute, or None if a link does not know its cost.

    Args:
        store: Where artifacts lie.
        stage: Stage of the last link.
        key: Its key.
    """
    total = 0.0
    while stage is not None and key is not None:
        found = store.find(stage, key)
        if found is None or found.record.get("seconds") is None:
            return None
        total += found.record["seconds"]
        request = found.record["request"]
        stage, key = request["upstream_stage"], request["upstream"]
    return round(total, 3)


def _write_reports(target: Path, job: Evaluation, artifact: Artifact) -> tuple[Path, ...]:
    target.mkdir(parents=True, exist_ok=True)
    rows = artifact.tensors("test")
    curve = reliability_curve(logits=rows["log_probs"], labels=rows["labels"])
    diagram, configuration = target / "reliability.png", target / "configuration.yaml"
    reliability_diagram(curve, title=f"{job.recipe} on {job.task}").savefig(diagram, dpi=110)
    configuration.write_text(_configuration_text(job), encoding="utf-8")
    return diagram, configuration


def _configuration_text(job: Evaluation) -> str:
    document = {
        "task": job.task,
        "recipe": job.recipe,
        "seed": job.seed,
        "objective": job.objective,
        "fixed": job.configuration,
    }
    return yaml.safe_dump(document, sort_keys=False)
