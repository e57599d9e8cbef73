"""Pictures of some test images with each recipe's confidence and errors per pixel."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from orchestrator.storage.results import StudyResult
from trainables.common.stages import ArtifactRef
from trainables.data import MASK_OUTSIDE
from trainables.store.artifacts import Artifact, ArtifactStore

IMAGES, WIDTH = 2, 168  # Images per recipe, and the width of each of the three columns in pixels.
QUALITY = 80
WHITE = 255


class Maps(NamedTuple):
    """The picture of one recipe; ``address`` is a data URI."""

    recipe: str
    address: str


def confidence_maps(results: Sequence[StudyResult], store: ArtifactStore) -> list[Maps]:
    """Return the maps of each recipe whose first seed has stored maps of pixels."""
    maps, reader = [], store.reader()
    for result in (result for result in results if result.predictions):
        ref = ArtifactRef("evaluate", result.predictions[0])
        artifact = reader.find(ref)
        if artifact is None and reader.holds(ref):
            store.notice(f"the maps of {result.recipe} are left out: {reader.fault(ref)}")
        if artifact is not None and (artifact.directory / "maps.safetensors").is_file():
            maps.append(Maps(result.recipe, _picture(artifact)))
    return maps


def _picture(artifact: Artifact) -> str:
    maps = {name: values.numpy() for name, values in artifact.tensors("maps").items()}
    return map_picture(maps, range(min(IMAGES, len(maps["rows"]))))


def map_picture(maps: Mapping[str, np.ndarray], rows: Iterable[int]) -> str:
    """Return a picture as a data URI: image, confidence and errors of each chosen image in a line.

    ``maps`` are those of ``shown_maps``; ``rows`` are positions in its arrays.
    """
    kinds = ("rows", "confidence", "predicted")
    lines = [_line(*(maps[kind][row] for kind in kinds)) for row in rows]
    stream = io.BytesIO()
    Image.fromarray(np.vstack(lines)).save(stream, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _line(row: np.ndarray, confidence: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return a stored image (H, W, 4), its confidence and its errors side by side, (h, 3 w, 3)."""
    mask = row[..., 3]
    inside = mask != MASK_OUTSIDE
    height, width = inside.any(1).sum(), inside.any(0).sum()
    labelled = mask < MASK_OUTSIDE
    wrong = labelled & (mask != predicted)
    errors = np.stack([np.where(wrong, confidence, 0), *[np.zeros_like(mask)] * 2], axis=2)
    errors[~labelled] = WHITE
    tiles = (row[..., :3], np.repeat(confidence[..., None], 3, axis=2), errors)
    size = WIDTH, max(1, round(WIDTH * int(height) / int(width)))
    shown = (Image.fromarray(tile[:height, :width]).resize(size) for tile in tiles)
    return np.hstack([np.asarray(tile) for tile in shown])
