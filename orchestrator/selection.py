"""Asking the tracking server for best configurations and comparison tables."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import yaml

from orchestrator.tables import DEFAULT_METRICS, ComparisonTable, build_table
from orchestrator.tracking import BestRun, Where, best_runs, study_results
from trainables.paths import storage_folder

__all__ = [
    "DEFAULT_METRICS",
    "BestConfig",
    "best_config",
    "comparison_table",
    "default_tracking_uri",
]


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
        rule: What made it the best: ``objective`` (the validation metric), ``accuracy_tolerance``
            (of the guard), ``epoch`` (whose metrics count), ``tie`` (who wins it); empty for sweeps
            that did not write it down.
        fixed: Part to its parameters: what ``search.fixed`` of another sweep file takes.
        validation: Its validation metrics, fractions.
        sweep_id: Identifies the sweep for good.
        fingerprint: Hash of the data and of how they were split.
        code: Git commit that it ran with.
        started: When its study was opened, local time, ISO 8601.
        note: What was left out because it is another version of the code; else empty.
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
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_fixed(self) -> str:
        """Return only the ``fixed:`` block, indented for below ``search:`` of a sweep file."""
        block = yaml.safe_dump({"fixed": self.fixed}, sort_keys=False)
        origin = f"# {self.recipe} on {self.task}: trial {self.number} of sweep {self.sweep}\n"
        return textwrap.indent(f"{origin}{block}", "  ")


def default_tracking_uri(storage: str = "calsweep-storage") -> str:
    """Return ``MLFLOW_TRACKING_URI`` if set, else the database inside a storage folder."""
    database = storage_folder(storage) / "mlflow.db"
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database}"


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
    a tie. Test metrics take no part. Studies on other data, with another model or protocol under
    the same name, or that chose by another rule are never ranked together: the call is refused
    until the filters leave one kind. Of several versions of the code the one that ran last counts,
    and ``BestConfig.note`` says what was left out.

    Args:
        task: ``dataset/model/protocol``, or the task's name in the sweep file.
        recipe: Such as ``mbls+macal``.
        tracking_uri: Where to ask; see ``default_tracking_uri``.
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
    where = Where(
        since=None if since is None else since.timestamp(),
        until=None if until is None else until.timestamp(),
        tags=tags or {},
        fingerprint=fingerprint,
        code=code,
    )
    runs = best_runs(tracking_uri or default_tracking_uri(), task, recipe, sweep, top, where)
    return [_best_config(run) for run in runs]


def _best_config(run: BestRun) -> BestConfig:
    return BestConfig(
        task=run.task,
        recipe=run.recipe,
        sweep=run.sweep,
        run_id=run.run_id,
        number=run.number,
        objective=run.objective,
        rule=run.rule,
        fixed=run.configuration,
        validation={k: v for k, v in run.metrics.items() if k.startswith("val_")},
        sweep_id=run.sweep_id,
        fingerprint=run.fingerprint,
        code=run.code,
        started=datetime.fromtimestamp(run.started).astimezone().isoformat(timespec="seconds"),
        note=run.note,
    )


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
