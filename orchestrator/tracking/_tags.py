"""How studies and trials are written as runs, and read back from them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from orchestrator.journal import TEST_PREFIX
from orchestrator.tracking import _names as names
from orchestrator.tracking._ledger import Ledger, Study, Trial

if TYPE_CHECKING:
    from mlflow.entities import Run


def study_name(study: Study) -> str:
    """Return the name shown for a study's run."""
    return f"{study.recipe} on {study.task}"


def trial_name(trial: Trial, ledger: Ledger) -> str:
    """Return the name shown for a trial's run."""
    recipe = _task_and_recipe(trial, ledger)[1]
    return f"{recipe} #{trial.number}" if trial.role == names.SEARCH else f"{recipe} ~{trial.seed}"


def study_tags(study: Study, ledger: Ledger) -> dict[str, str]:
    """Return the tags with which a study's run is created."""
    versions = {names.VERSION + name: version for name, version in ledger.versions.items()}
    return versions | {
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
        **{names.RULE + name: value for name, value in study.rule.items()},
    }


def trial_tags(trial: Trial, ledger: Ledger, parent_run: str | None) -> dict[str, str]:
    """Return the tags with which a trial's run is created."""
    parent = {} if parent_run is None else {names.PARENT: parent_run}
    study = ledger.studies.get(trial.study)
    return parent | {
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
    tags, metrics = run.data.tags, run.data.metrics
    return Study(
        tags[names.STUDY],
        tags[names.TASK],
        tags[names.RECIPE],
        index=int(tags[names.NUMBER]),
        trials=int(tags[names.TRIALS]),
        row=tags[names.ROW] == "true",
        opened=run.info.start_time,
        upstream=tags[names.UPSTREAM] or None,
        fingerprint=tags[names.FINGERPRINT],
        status=run.info.status,
        chosen=tags.get(names.CHOSEN) or None,
        finished=int(metrics.get(names.TRIALS_FINISHED, 0)),
        failed=int(metrics.get(names.TRIALS_FAILED, 0)),
        reason=tags.get(names.REASON, ""),
        run_id=run.info.run_id,
        dataset=tags.get(names.DATASET, ""),
        model=tags.get(names.MODEL, ""),
        protocol=tags.get(names.PROTOCOL, ""),
        setting=tags.get(names.SETTING, ""),
        rule={
            name.removeprefix(names.RULE): value
            for name, value in tags.items()
            if name.startswith(names.RULE)
        },
        origin=json.loads(tags.get(names.ORIGIN, "{}")),
        code=tags.get(names.GIT_COMMIT, ""),
        sweep_id=tags[names.SWEEP_ID],
    )


def trial_of(run: Run) -> Trial:
    """Read a trial back from its run."""
    tags, metrics = run.data.tags, run.data.metrics
    special = (names.OBJECTIVE, names.TRIAL_NUMBER, names.CHAIN_SECONDS)
    test = [name for name in metrics if name.startswith(TEST_PREFIX)]
    validation = {name: value for name, value in metrics.items() if name not in test}
    return Trial(
        tags[names.KEY],
        tags[names.STUDY],
        int(tags[names.NUMBER]),
        tags[names.ROLE],
        int(tags[names.SEED]),
        tags[names.STAGE],
        names.configuration_of(tags),
        started=run.info.start_time,
        status=run.info.status,
        metrics={name: value for name, value in validation.items() if name not in special},
        test={name.removeprefix(TEST_PREFIX): metrics[name] for name in test},
        objective=metrics.get(names.OBJECTIVE),
        reason=tags.get(names.REASON, ""),
        run_id=run.info.run_id,
        code=tags.get(names.GIT_COMMIT, ""),
        artifact=tags.get(names.ARTIFACT, ""),
        predictions=tags.get(names.PREDICTIONS, ""),
        chain_seconds=metrics.get(names.CHAIN_SECONDS),
    )


def _common_tags(ledger: Ledger, kind: str, study: str, task: str, recipe: str) -> dict[str, str]:
    return {
        names.KIND: kind,
        names.SWEEP: ledger.sweep,
        names.SWEEP_ID: ledger.sweep_id,
        **ledger.tags,
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
