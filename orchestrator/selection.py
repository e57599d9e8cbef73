"""Asking the tracking server for best configurations and comparison tables."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.tables import ComparisonTable, build_table
from orchestrator.tracking import best_runs, study_results

__all__ = [
    "DEFAULT_METRICS",
    "BestConfig",
    "best_config",
    "comparison_table",
    "default_tracking_uri",
]

DEFAULT_METRICS = ("acc", "ece", "aece", "cwece", "nll")


@dataclass(frozen=True)
class BestConfig:
    """The best configuration of a recipe on a task.

    Attributes:
        task: The task.
        recipe: The recipe.
        sweep: The sweep that found it.
        run_id: Its MLflow run.
        number: The trial's number within its study.
        objective: Its validation objective, a fraction (or nats for NLL), lower is better.
        fixed: Part to its parameters: what ``search.fixed`` of another sweep file takes.
        validation: Its validation metrics, fractions.
    """

    task: str
    recipe: str
    sweep: str
    run_id: str
    number: int
    objective: float
    fixed: dict[str, dict[str, Any]]
    validation: dict[str, float]

    def to_yaml(self) -> str:
        """Return it as YAML, with the block that goes below ``search:`` of a sweep file."""
        return yaml.safe_dump(self.__dict__, sort_keys=False)

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(self.__dict__, indent=2)


def default_tracking_uri(storage: str = "calsweep-storage") -> str:
    """Return ``MLFLOW_TRACKING_URI`` if set, else the database inside a storage folder."""
    database = Path(storage).expanduser().absolute() / "mlflow.db"
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database}"


def best_config(
    task: str,
    recipe: str,
    *,
    tracking_uri: str | None = None,
    sweep: str | None = None,
    top: int = 1,
) -> list[BestConfig]:
    """Ask the tracking server for the best configurations of a recipe on a task.

    "Best" is the lowest validation objective among finished search trials; the earlier trial wins
    a tie. Test metrics take no part.

    Args:
        task: ``dataset/model/protocol``, or the task's name in the sweep file.
        recipe: Such as ``mbls+macal``.
        tracking_uri: Where to ask; see ``default_tracking_uri``.
        sweep: Only trials of this sweep.
        top: How many, best first.

    Raises:
        InputError: If there is no such task, recipe or sweep; the text lists what there is.
    """
    runs = best_runs(tracking_uri or default_tracking_uri(), task, recipe, sweep, top)
    return [
        BestConfig(
            task=run.task,
            recipe=run.recipe,
            sweep=run.sweep,
            run_id=run.run_id,
            number=run.number,
            objective=run.objective,
            fixed=run.configuration,
            validation={k: v for k, v in run.metrics.items() if k.startswith("val_")},
        )
        for run in runs
    ]


def comparison_table(
    sweep: str,
    *,
    tracking_uri: str | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> ComparisonTable:
    """Build the comparison table of a sweep from the tracking server.

    Args:
        sweep: The sweep's name.
        tracking_uri: Where to ask; see ``default_tracking_uri``.
        metrics: Columns, from ``acc, ece, aece, cwece, cwaece, mce, nll, brier``.

    Raises:
        InputError: If there is no such sweep or metric; the text lists what there is.
    """
    results = study_results(tracking_uri or default_tracking_uri(), sweep)
    return build_table(results, metrics)
