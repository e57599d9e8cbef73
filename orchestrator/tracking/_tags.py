"""How studies and trials are written as runs, and read back from them."""

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.search.choice import SEARCH
from orchestrator.storage.events import TEST_PREFIX
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.results import as_text
from orchestrator.tracking import _names as names
from orchestrator.tracking.tracker import Run

STUDY_STATUS = {
    names.RUNNING: "running",
    names.FINISHED: "finished",
    names.FAILED: "failed",
    names.KILLED: "failed",
}
TRIAL_STATUS = {names.RUNNING: "running"} | {
    status: said for said, status in names.STATUS_OF_TRIAL.items()
}


def study_name(study: Study) -> str:
    """Return the name shown for a study's run."""
    return f"{study.recipe} on {study.task}"


def trial_name(trial: Trial, ledger: Ledger) -> str:
    """Return the name shown for a trial's run."""
    recipe = _task_and_recipe(trial, ledger)[1]
    return f"{recipe} #{trial.number}" if trial.role == SEARCH else f"{recipe} ~{trial.seed}"


def study_tags(study: Study, ledger: Ledger) -> dict[str, str]:
    """Return the tags with which a study's run is created."""
    versions = {names.VERSION + name: str(version) for name, version in study.versions.items()}
    return versions | {
        **_guessable(study),
        **_common_tags(ledger, "study", study.name, study.task, study.recipe),
        names.GIT_COMMIT: study.code,
        names.KEY: study.name,
        names.NUMBER: str(study.index),
        names.ROW: names.yes(study.row),
        names.TRIALS: str(study.trials),
        names.UPSTREAM: study.upstream or "",
        names.FINGERPRINT: study.fingerprint,
        names.DATASET: study.dataset,
        names.MODEL: study.model,
        names.PROTOCOL: study.protocol,
        names.SETTING: study.setting,
        names.ORIGIN: json.dumps(study.origin),
        **{names.RULE + name: as_text(value) for name, value in study.rule.items()},
    }


def trial_tags(trial: Trial, ledger: Ledger) -> dict[str, str]:
    """Return the tags with which a trial's run is created."""
    study = ledger.studies.get(trial.study)
    return {
        **({} if study is None else _guessable(study)),
        "seed": str(trial.seed),
        "stage": trial.stage,
        **_common_tags(ledger, "trial", trial.study, *_task_and_recipe(trial, ledger)),
        names.GIT_COMMIT: trial.code,
        **names.configuration_tags(trial.configuration),
        names.KEY: trial.key,
        names.NUMBER: str(trial.number),
        names.ROLE: trial.role,
        names.SEED: str(trial.seed),
        names.STAGE: trial.stage,
        names.FINGERPRINT: study.fingerprint if study else "",
    }


def study_of(run: Run) -> Study:
    """Read a study back from its run."""
    tags, metrics = run.tags, run.metrics
    return Study(
        study=tags[names.STUDY],
        task=tags[names.TASK],
        recipe=tags[names.RECIPE],
        index=int(tags[names.NUMBER]),
        trials=int(tags[names.TRIALS]),
        row=tags[names.ROW] == "true",
        time=run.started,
        upstream=tags[names.UPSTREAM] or None,
        fingerprint=tags[names.FINGERPRINT],
        status=STUDY_STATUS[run.status],
        chosen=tags.get(names.CHOSEN) or None,
        finished=int(metrics.get(names.TRIALS_FINISHED, 0)),
        failed=int(metrics.get(names.TRIALS_FAILED, 0)),
        reason=tags.get(names.REASON, ""),
        run_id=run.id,
        dataset=tags.get(names.DATASET, ""),
        model=tags.get(names.MODEL, ""),
        protocol=tags.get(names.PROTOCOL, ""),
        setting=tags.get(names.SETTING, ""),
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
        study=tags[names.STUDY],
        number=int(tags[names.NUMBER]),
        key=tags[names.KEY],
        role=tags[names.ROLE],
        seed=int(tags[names.SEED]),
        stage=tags[names.STAGE],
        configuration=names.configuration_of(tags),
        time=run.started,
        open=run.status == names.RUNNING,
        status=TRIAL_STATUS[run.status],
        metrics={name: value for name, value in validation.items() if name not in special},
        test=_below(metrics, TEST_PREFIX),
        objective=metrics.get(names.OBJECTIVE),
        reason=tags.get(names.REASON, ""),
        run_id=run.id,
        code=tags.get(names.GIT_COMMIT, ""),
        artifact=tags.get(names.ARTIFACT, ""),
        predictions=tags.get(names.PREDICTIONS, ""),
        default_predictions=tags.get(names.DEFAULT_PREDICTIONS, ""),
        chain_seconds=metrics.get(names.CHAIN_SECONDS),
        computed=json.loads(tags.get(names.COMPUTED, "{}")),
    )


def _below(named: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): value for k, value in named.items() if k.startswith(prefix)}


def _guessable(study: Study) -> dict[str, str]:
    """Return tags under the names that a stranger looks for; a sweep's own tags go before them."""
    facts = ("task", "recipe", "dataset", "model", "protocol")
    return {name: value for name in facts if (value := getattr(study, name))}


def _common_tags(ledger: Ledger, kind: str, study: str, task: str, recipe: str) -> dict[str, str]:
    return {
        names.KIND: kind,
        names.SWEEP: ledger.sweep,
        names.SWEEP_ID: ledger.sweep_id,
        **(ledger.spec.get("tags") or {}),
        names.STUDY: study,
        names.TASK: task,
        names.RECIPE: recipe,
    }


def _task_and_recipe(trial: Trial, ledger: Ledger) -> tuple[str, str]:
    study = ledger.studies.get(trial.study)
    if study is not None:
        return study.task, study.recipe
    task, _, recipe = trial.study.partition("|")
    return task, recipe
