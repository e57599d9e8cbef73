"""Exports searches as blackboxes: tables of configurations, epochs, seeds and predictions."""

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from optuna.distributions import distribution_to_json
from torch import Tensor

from orchestrator.logits.files import write_arrays
from orchestrator.replay.recorded import RecordedStudy, RecordedTrial, read_sweeps
from orchestrator.running.reproduce import prepare_process
from orchestrator.search.study import distribution_of
from orchestrator.storage.ledger import Study, Trial
from orchestrator.storage.storage import Storage
from trainables.common.errors import InputError
from trainables.stages import StageRequest, TaskData, open_stage
from trainables.store.artifacts import ArtifactStore

FORMAT = 1
SAME = 1e-4
"""Largest difference of logits when the same machine computes them again."""


def export_blackbox(
    root: Storage,
    sweep: str,
    path: Path,
    recipes: Sequence[str] = (),
    every_epoch: bool = False,
    done: Callable[[int, int], None] = lambda number, total: None,
) -> dict[str, Any]:
    """Write the finished trials of a sweep's searches as one ``.npz`` archive; return ``about``.

    The archive has the text ``about`` (JSON) and these arrays for study number i with K classes:

    - ``i/validation`` (R, N, K), float32: logits of N validation rows for R runs. A run is a trial,
      or, with ``every_epoch``, a trial after one of its epochs.
    - ``i/test`` (T, M, K), float32: log-probabilities of M test rows for T trials.
    - ``i/validation_labels`` (N,) and ``i/test_labels`` (M,).

    Args:
        root: The storage. The trials are measured on test data; see ``read_sweeps``.
        sweep: A sweep that has ended.
        path: The file to write.
        recipes: Recipes of the studies; if empty, all studies with a search.
        every_epoch: Whether to recompute trials to obtain the predictions of earlier epochs.
        done: Called with the number of exported trials and their total.
    """
    [found] = read_sweeps(root, [sweep], recipes)
    numbers, total = count(1), sum(len(study.trials) for study in found.studies)
    arrays: dict[str, np.ndarray] = {}
    studies = []
    for number, study in enumerate(found.studies):
        known = found.ledger.studies[study.plan.id]
        runs: list[dict[str, Any]] = []
        validation: list[Tensor] = []
        for place, trial in enumerate(study.trials):
            logits = _epochs(trial, study, known, root.store()) if every_epoch else [trial.logits]
            validation += logits
            ends = [*[None] * (len(logits) - 1), place]
            runs += [
                _run(trial.trial, epoch if every_epoch else None, end)
                for epoch, end in enumerate(ends, start=1)
            ]
            done(next(numbers), total)
        studies.append(_about(study, runs))
        arrays |= {
            f"{number}/validation": torch.stack(validation).float().numpy(),
            f"{number}/validation_labels": study.labels.numpy(),
            f"{number}/test": torch.stack([t.outputs for t in study.trials]).float().numpy(),
            f"{number}/test_labels": study.test_labels.numpy(),
        }
    about = {
        "format": FORMAT,
        "sweep": sweep,
        "objective": found.ledger.objective,
        "code": found.ledger.git_commit,
        "versions": found.ledger.provenance.get("versions") or {},
        "studies": studies,
    }
    write_arrays(path, {"about": np.array(json.dumps(about)), **arrays})
    return about


def _run(trial: Trial, epoch: int | None, test: int | None) -> dict[str, Any]:
    """Return the record of a trial after an epoch.

    ``test`` is the trial's position in the array of test predictions, or None before the last
    epoch.
    """
    ended = test is not None
    figures = {k: v for k, v in trial.metrics.items() if ended and k.startswith("val_")}
    return {
        "trial": trial.number,
        "seed": trial.seed,
        "epoch": epoch,
        "parameters": trial.parameters,
        "configuration": trial.configuration,
        "test": test,
        "figures": figures,
        "objective": trial.objective if ended else None,
        "seconds": trial.seconds if ended else None,
    }


def _epochs(
    trial: RecordedTrial, study: RecordedStudy, known: Study, store: ArtifactStore
) -> list[Tensor]:
    """Compute a trial's last stage again; return the validation logits after each epoch."""
    recorded = trial.trial
    artifact = store.find(recorded.ref, whole=False)
    assert artifact is not None  # Its predictions have just been read.
    device = prepare_process(known.origin, recorded.stage)
    request = StageRequest(**{**artifact.record["request"], "data": str(study.data.directory)})
    run = open_stage(request, store, TaskData(study.data, device))
    found: list[Tensor] = []
    while run.epoch < run.epochs:
        run.run_epoch()
        found.append(run.outcome()[0]["validation"]["logits"].cpu().clone())
    if not torch.allclose(found[-1], trial.logits, rtol=0.0, atol=SAME):
        raise InputError(
            f"trial {recorded.number} of {recorded.study} has other logits when computed again (by "
            "other code or on another machine than before); run without --every-epoch"
        )
    return [*found[:-1], trial.logits]


def _about(study: RecordedStudy, runs: list[dict[str, Any]]) -> dict[str, Any]:
    plan = study.plan
    space = {
        f"{part}.{name}": distribution_to_json(distribution_of(parameter))
        for part, parameters in plan.searched.items()
        for name, parameter in parameters.items()
    }
    return {
        "task": plan.task.id,
        "recipe": plan.recipe.name,
        "dataset": plan.task.dataset,
        "model": plan.task.model,
        "data": study.data.key,
        "space": space,
        "runs": runs,
    }
