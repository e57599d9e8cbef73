"""The champion of a task: the chosen weights in a model registry."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from orchestrator.storage.storage import Storage
from orchestrator.sweep.tracking_uri import default_tracking_uri
from orchestrator.tracking._kinds import open_tracker
from orchestrator.tracking.best import TrackedTrial, tracked_trial
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE
from trainables.data import PreparedData
from trainables.stages.export import export_chain

CHAMPION = "champion"


@dataclass(frozen=True)
class Champion:
    """The version of a registered model that is now its task's champion.

    Attributes:
        model: Name of the registered model: the task's, with ``.`` for ``/`` and ``-`` for ``:``.
        new: True if another version, or none, was the champion before.
    """

    model: str
    version: str
    alias: str
    run_id: str
    new: bool


def promote(
    run_id: str, tracking_uri: str | None = None, storage: str = DEFAULT_STORAGE
) -> Champion:
    """Register the weights of a run and make them their task's champion.

    The model contains all stages, from the network to the calibrator: their weights as
    safetensors, and JSON from which they are rebuilt. A second call changes nothing.

    Args:
        run_id: Run of a finished trial.
        tracking_uri: Address of the tracker; see ``default_tracking_uri``.
        storage: Storage folder with the weights of the trial.
    """
    uri = tracking_uri or default_tracking_uri(storage)
    found = tracked_trial(uri, run_id)
    trial, study, place = found.trial, found.study, Storage(storage)
    store = place.store()
    if not trial.artifact or not store.contains(trial.ref):
        raise InputError(
            f"run {run_id}: its weights are not in {store.root}; name the sweep's storage, or "
            f"compute them again with `calsweep run --reproduce {run_id}`"
        )
    info = PreparedData.open(place.data / study.fingerprint).info
    with tempfile.TemporaryDirectory() as folder:
        export_chain(store, trial.ref, info, Path(folder))
        model, version, new = open_tracker(uri).register(
            study.task, run_id, Path(folder), _tags(found), CHAMPION
        )
    return Champion(model, version, CHAMPION, run_id, new)


def _tags(found: TrackedTrial) -> dict[str, str]:
    trial, study = found.trial, found.study
    figures = {**trial.metrics, **{f"test_{name}": value for name, value in trial.test.items()}}
    facts = {
        "task": study.task,
        "recipe": study.recipe,
        "sweep": found.sweep,
        "run": trial.run_id,
        "code": trial.code,
        "fingerprint": study.fingerprint,
        "objective": repr(trial.objective),
        **{name: repr(value) for name, value in figures.items()},
    }
    return {f"calsweep.{name}": value for name, value in facts.items()}
