"""A trained chain of stages as a folder that stands on its own: weights, and how to rebuild it.

``export_chain(...)`` writes it, ``load_chain(folder)`` returns a function from images to
log-probabilities. Nothing is pickled: weights are safetensors, the rest is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainables.artifacts import ArtifactStore
from trainables.data import DatasetInfo
from trainables.errors import InputError
from trainables.stages import STAGES, predictor

__all__ = ["export_chain", "load_chain"]

FORMAT = 1
DESCRIPTION = "chain.json"
WEIGHTS = dict(zip(STAGES, ("weights", "head", "calibrator"), strict=True))
BUILD = ("stage", "parts", "model", "protocol", "seed", "upstream", "upstream_stage", "precision")


def export_chain(
    store: ArtifactStore, stage: str, key: str, info: DatasetInfo, folder: Path
) -> None:
    """Write what is needed to predict with a chain of stages, and nothing of the data.

    The folder is an artifact store that holds the chain's weights alone, with ``chain.json``, which
    names the last stage and describes the data set.

    Args:
        store: Where the artifacts lie.
        stage: Stage of the last one.
        key: Its key.
        info: The data set's constants.
        folder: Where to write; created if absent.

    Raises:
        InputError: If an artifact is missing or damaged, or the folder cannot be written.
    """
    copy, last = ArtifactStore(folder), (stage, key)
    link: tuple[str | None, str | None] = last
    while link[0] is not None and link[1] is not None:
        link = _copy(store, copy, link[0], link[1])
    document = {"format": FORMAT, "stage": stage, "key": key, "data": info.to_dict()}
    try:
        (folder / DESCRIPTION).write_text(json.dumps(document, indent=2), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error}") from error


def _copy(
    store: ArtifactStore, copy: ArtifactStore, stage: str, key: str
) -> tuple[str | None, str | None]:
    """Copy one link; return stage and key of the one it builds on."""
    found = store.find(stage, key)
    if found is None:
        raise InputError(f"artifact {store.path(stage, key)} is missing or damaged")
    # The request also names folders of the machine that computed it.
    request = {name: value for name, value in found.record["request"].items() if name in BUILD}
    name = WEIGHTS[stage]
    record = {"request": request, "metrics": found.record["metrics"]}
    copy.write(stage, key, {name: found.tensors(name)}, record)
    return request["upstream_stage"], request["upstream"]


def load_chain(
    folder: str | Path, device: torch.device | None = None
) -> Callable[[np.ndarray], Tensor]:
    """Return a function from images (N, H, W, C), uint8, to log-probabilities (N, K), float32.

    Args:
        folder: What ``export_chain`` wrote, such as a model version downloaded from a registry.
        device: Where networks run; the CPU if left out.

    Raises:
        InputError: If the folder holds no such thing, or a file in it is damaged.
    """
    folder = Path(folder)
    document = _described(folder / DESCRIPTION)
    info = DatasetInfo.from_dict(document["data"])
    outputs = predictor(
        ArtifactStore(folder),
        document["stage"],
        document["key"],
        info,
        device or torch.device("cpu"),
    )
    return lambda images: outputs(images).log_softmax(1).float()


def _described(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path} is no description of a chain in format {FORMAT}")
    return document
