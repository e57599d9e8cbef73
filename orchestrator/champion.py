"""The champion of a task: chosen weights in MLflow's model registry, and back from there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.selection import default_tracking_uri
from orchestrator.tracking import BestRun, tracked_run
from trainables.artifacts import ArtifactStore
from trainables.data import PreparedData
from trainables.errors import InputError
from trainables.export import export_chain, load_chain
from trainables.paths import storage_folder

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = ["CHAMPION", "Champion", "load_champion", "promote"]

CHAMPION = "champion"
"""The alias."""


@dataclass(frozen=True)
class Champion:
    """A version of a registered model that is now its task's champion.

    Attributes:
        model: Name of the registered model: the task's, with ``.`` for ``/`` and ``-`` for ``:``.
        version: Its version.
        alias: ``champion``.
        run_id: The run that the weights come from.
        new: Whether another version, or none, was the champion before.
    """

    model: str
    version: str
    alias: str
    run_id: str
    new: bool


def promote(
    run_id: str, tracking_uri: str | None = None, storage: str = "calsweep-storage"
) -> Champion:
    """Register the weights of a run and make them their task's champion.

    The whole chain of stages is stored with the run: weights as safetensors, and JSON that says how
    to rebuild it. Doing it again changes nothing.

    Args:
        run_id: A finished trial.
        tracking_uri: Store and registry; see ``default_tracking_uri``.
        storage: Storage folder of the sweep, which holds the weights.

    Raises:
        InputError: If there is no such run, its weights are not in the storage, or the registry
            gives no answer.
    """
    from orchestrator.tracking._registry import register
    from orchestrator.tracking._store import existing

    uri = tracking_uri or default_tracking_uri(storage)
    run = tracked_run(uri, run_id)
    root = storage_folder(storage)
    store = ArtifactStore(root / "artifacts")
    if not run.artifact or not store.contains(run.stage, run.artifact):
        raise InputError(
            f"run {run_id}: its weights are not in {store.root}; name the sweep's storage, or "
            f"compute them again with `calsweep reproduce {run_id}`"
        )
    info = PreparedData.open(root / "data" / run.fingerprint).info
    with tempfile.TemporaryDirectory() as folder:
        export_chain(store, run.stage, run.artifact, info, Path(folder))
        model, version, new = register(
            existing(uri), run.task, run_id, Path(folder), _tags(run), CHAMPION
        )
    return Champion(model, version, CHAMPION, run_id, new)


def load_champion(
    task: str, folder: str | Path, tracking_uri: str | None = None
) -> Callable[[np.ndarray], Tensor]:
    """Download a task's champion and return it as a function.

    ``trainables.export.load_chain`` does the same with a folder that is there already.

    Args:
        task: ``dataset/model/protocol``, or the task's name in the sweep file.
        folder: Where to put the files.
        tracking_uri: Store and registry; see ``default_tracking_uri``.

    Returns:
        A function from images (N, H, W, C), uint8, to log-probabilities (N, K), float32.

    Raises:
        InputError: If the task has no champion, the registry gives no answer, or a file is damaged.
    """
    from orchestrator.tracking._registry import download
    from orchestrator.tracking._store import existing

    server = existing(tracking_uri or default_tracking_uri())
    return load_chain(download(server, task, CHAMPION, Path(folder)))


def _tags(run: BestRun) -> dict[str, str]:
    figures = {**run.metrics, **{f"test_{name}": value for name, value in run.test.items()}}
    facts = {
        "task": run.task,
        "recipe": run.recipe,
        "sweep": run.sweep,
        "run": run.run_id,
        "code": run.code,
        "fingerprint": run.fingerprint,
        "objective": repr(run.objective),
        **{name: repr(value) for name, value in figures.items()},
    }
    return {f"calsweep.{name}": value for name, value in facts.items()}
