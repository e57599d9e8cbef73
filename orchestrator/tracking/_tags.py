"""Writes studies and trials as runs, and reads them from runs."""

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.search.choice import SEARCH
from orchestrator.storage.events import TEST_PREFIX
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.results import as_text
from orchestrator.tracking import _names as names
from orchestrator.tracking.tracker import Run

# Attributes of ``Study`` and ``Trial`` that are stored as tags of the same name.
_STUDY = ("study", "task", "recipe", "fingerprint", "dataset", "model", "protocol", "setting")
_TRIAL = ("study", "key", "role", "stage")


def study_name(study: Study) -> str:
    """Return the displayed name of a study's run."""
    return f"{study.recipe} on {study.task}"


def trial_name(trial: Trial, ledger: Ledger) -> str:
    """Return the displayed name of a trial's run: recipe and number, or seed after the search."""
    recipe = _task_and_recipe(trial, ledger)[1]
    return f"{recipe} #{trial.number}" if trial.role == SEARCH else f"{recipe} ~{trial.seed}"


def study_tags(study: Study, ledger: Ledger) -> dict[str, str]:
    """Return the tags with which a study's run is created."""
    return {
        **{names.VERSION + name: str(version) for name, version in study.versions.items()},
        **_plain_tags(study),
        **_common_tags(ledger, "study", study, _STUDY),
        names.KEY: study.name,
        names.NUMBER: str(study.index),
        names.ROW: names.yes(study.row),
        names.TRIALS: str(study.trials),
        names.UPSTREAM: study.upstream or "",
        names.ORIGIN: json.dumps(study.origin),
        **{names.RULE + name: as_text(value) for name, value in study.rule.items()},
    }


def trial_tags(trial: Trial, ledger: Ledger) -> dict[str, str]:
    """Return the tags with which a trial's run is created."""
    study, (task, recipe) = ledger.studies.get(trial.study), _task_and_recipe(trial, ledger)
    return {
        **({} if study is None else _plain_tags(study)),
        "seed": str(trial.seed),
        "stage": trial.stage,
        **_common_tags(ledger, "trial", trial, _TRIAL),
        names.TASK: task,
        names.RECIPE: recipe,
        **names.configuration_tags(trial.configuration),
        names.NUMBER: str(trial.number),
        names.SEED: str(trial.seed),
        names.FINGERPRINT: study.fingerprint if study else "",
    }


def study_of(run: Run) -> Study:
    """Read a study back from its run."""
    tags, metrics = run.tags, run.metrics
    return Study(
        **_texts(tags, *_STUDY, "reason"),
        index=int(tags[names.NUMBER]),
        trials=int(tags[names.TRIALS]),
        row=tags[names.ROW] == "true",
        time=run.started,
        upstream=tags[names.UPSTREAM] or None,
        status="interrupted" if run.status == names.KILLED else run.status.lower(),
        chosen=tags.get(names.CHOSEN) or None,
        finished=int(metrics.get(names.TRIALS_FINISHED, 0)),
        failed=int(metrics.get(names.TRIALS_FAILED, 0)),
        run_id=run.id,
        rule=_below(tags, names.RULE),
        origin=json.loads(tags.get(names.ORIGIN, "{}")),
        code=tags.get(names.GIT_COMMIT, ""),
        versions=_below(tags, names.VERSION),
        sweep_id=tags[names.SWEEP_ID],
    )


def trial_of(run: Run) -> Trial:
    """Read a trial back from its run."""
    tags, metrics = run.tags, run.metrics
    special = (names.OBJECTIVE, names.TRIAL_NUMBER, names.CHAIN_SECONDS)
    validation = {k: value for k, value in metrics.items() if not k.startswith(TEST_PREFIX)}
    return Trial(
        **_texts(tags, *_TRIAL, "reason", "artifact", "predictions", "default_predictions"),
        number=int(tags[names.NUMBER]),
        seed=int(tags[names.SEED]),
        configuration=names.configuration_of(tags),
        time=run.started,
        open=run.status == names.RUNNING,
        status="pruned" if run.status == names.KILLED else run.status.lower(),
        metrics={name: value for name, value in validation.items() if name not in special},
        test=_below(metrics, TEST_PREFIX),
        objective=metrics.get(names.OBJECTIVE),
        run_id=run.id,
        code=tags.get(names.GIT_COMMIT, ""),
        chain_seconds=metrics.get(names.CHAIN_SECONDS),
        computed=json.loads(tags.get(names.COMPUTED, "{}")),
    )


def _texts(tags: Mapping[str, str], *attributes: str) -> dict[str, Any]:
    return {name: tags.get(names.PREFIX + name, "") for name in attributes}


def _below(named: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): value for k, value in named.items() if k.startswith(prefix)}


def _plain_tags(study: Study) -> dict[str, str]:
    """Return tags with simple names for people who search; the sweep file's tags replace them."""
    facts = ("task", "recipe", "dataset", "model", "protocol")
    return {name: value for name in facts if (value := getattr(study, name))}


def _common_tags(
    ledger: Ledger, kind: str, record: Study | Trial, attributes: tuple[str, ...]
) -> dict[str, str]:
    return {
        **(ledger.spec.get("tags") or {}),
        names.KIND: kind,
        names.SWEEP: ledger.sweep,
        names.SWEEP_ID: ledger.sweep_id,
        names.GIT_COMMIT: record.code,
        **{names.PREFIX + name: getattr(record, name) for name in attributes},
    }


def _task_and_recipe(trial: Trial, ledger: Ledger) -> tuple[str, str]:
    study = ledger.studies.get(trial.study)
    if study is not None:
        return study.task, study.recipe
    task, _, recipe = trial.study.partition("|")
    return task, recipe
