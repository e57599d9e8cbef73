"""Exports a trained chain of stages to a folder with everything needed to predict."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainables.common.errors import InputError
from trainables.common.files import read_document, writing
from trainables.common.stages import ArtifactRef
from trainables.data import DatasetInfo
from trainables.stages import predictor
from trainables.stages.base import find_artifact
from trainables.store.artifacts import ArtifactStore

FORMAT = 1
DESCRIPTION = "chain.json"
WEIGHTS = {"train": "weights", "refine": "head", "calibrate": "calibrator"}
LEFT_OUT = ("data", "upstream_request")  # Fields of a request with paths of this machine.


def export_chain(store: ArtifactStore, ref: ArtifactRef, info: DatasetInfo, folder: Path) -> None:
    """Write everything needed to predict with a chain of stages, without any rows of data.

    The folder, created if missing, is an artifact store with only the chain's weights. Its
    ``chain.json`` names the last stage and describes the data set. ``ref`` is the chain's last
    artifact.
    """
    document = {"format": FORMAT, "stage": ref.stage, "key": ref.key, "data": info.to_dict()}
    copy = ArtifactStore(folder)
    link: ArtifactRef | None = ref
    while link is not None:
        found = find_artifact(store, link)
        request = {k: v for k, v in found.record["request"].items() if k not in LEFT_OUT}
        tensors = {name: found.tensors(name) for name in filter(None, [WEIGHTS.get(link.stage)])}
        kept = {k: found.record[k] for k in ("metrics", "accepted") if k in found.record}
        copy.write(link, tensors, {"request": request, **kept})
        link = found.upstream
    with writing(folder):
        (folder / DESCRIPTION).write_text(json.dumps(document, indent=2), encoding="utf-8")


def load_chain(
    folder: str | Path, device: torch.device | None = None
) -> Callable[[np.ndarray], Tensor]:
    """Return a function that maps rows, in the data set's stored form, to log-probabilities (N, K).

    Images are (N, H, W, C), uint8. Images with masks give (N, K, H, W), see ``predictor``. Texts
    are strings (N,) or rows in the stored form. Features are (N, D), logits (N, K).

    Args:
        folder: A folder of ``export_chain``, such as a model version downloaded from a registry.
        device: The device of networks; by default the CPU.

    Raises:
        InputError: If the folder has no exported chain, or a file in it is damaged.
    """
    folder = Path(folder)
    document = read_document(folder / DESCRIPTION, "the description of a chain", FORMAT)
    try:
        info = DatasetInfo.from_dict(document["data"])
        last = ArtifactRef(document["stage"], document["key"])
        if not all(isinstance(part, str) for part in last):
            raise TypeError(f"expected text as stage and key, got {tuple(last)}")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{folder / DESCRIPTION} is damaged: {error!r}") from error
    return predictor(ArtifactStore(folder), last, info, device or torch.device("cpu"))
