"""The maps of test images on the page, from what an evaluation stored."""

import base64
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from orchestrator.storage.results import StudyResult
from orchestrator.view._maps import WIDTH, confidence_maps
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore


def result(recipe: str, *predictions: str) -> StudyResult:
    return StudyResult(
        sweep="s", task="t", recipe=recipe, status="finished", predictions=predictions
    )


def test_a_wrong_pixel_is_red_and_void_is_white(tmp_path: Path) -> None:
    rows = torch.zeros(3, 40, 80, 4, dtype=torch.uint8)
    rows[..., 0] = 200
    rows[..., 3] = 254  # Beyond an image of 20 x 40 pixels.
    rows[:, :20, :40, 3] = 1
    rows[:, :20, :10, 3] = 255
    predicted = torch.ones(3, 40, 80, dtype=torch.uint8)
    predicted[0, :, 25:] = 0
    confidence = torch.full_like(predicted, 200)
    confidence[1] = 100
    maps = {"rows": rows, "predicted": predicted, "confidence": confidence}
    store = ArtifactStore(tmp_path)
    key = "ab" * 32
    store.write(ArtifactRef("evaluate", key), {"maps": maps}, {"metrics": {}})
    store.write(
        ArtifactRef("evaluate", key[::-1]), {"test": {"labels": predicted}}, {"metrics": {}}
    )
    results = [result("ce", key, key[::-1]), result("ls", key[::-1]), result("fl")]
    one = {name: values[:1] for name, values in maps.items()}
    store.write(ArtifactRef("evaluate", "cd" * 32), {"maps": one}, {"metrics": {}})
    (alone,) = confidence_maps([result("au", "cd" * 32)], store)
    small = Image.open(io.BytesIO(base64.b64decode(alone.address.partition(",")[2])))
    assert small.size == (3 * WIDTH, WIDTH // 2)
    found = confidence_maps(results, store)
    (shown,) = found
    head, _, content = shown.address.partition(",")
    assert (shown.recipe, head) == ("ce", "data:image/jpeg;base64")
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert picture.shape == (2 * (WIDTH // 2), 3 * WIDTH, 3)  # Two images of the three.
    image, confidence, errors = (picture[40, k * WIDTH + WIDTH // 2] for k in range(3))
    assert abs(int(image[0]) - 200) < 25  # Red.
    assert image[1:].max() < 60
    assert np.abs(confidence.astype(int) - 200).max() < 10
    assert errors.max() < 40
    void, wrong = (picture[40, 2 * WIDTH + x] for x in (10, WIDTH - 20))
    assert void.min() > 220
    assert abs(int(wrong[0]) - 200) < 25  # As bright as it is confident.
    assert wrong[1:].max() < 60
    sure, right = (picture[WIDTH // 2 + 40, place] for place in (WIDTH + 80, 3 * WIDTH - 20))
    assert np.abs(sure.astype(int) - 100).max() < 10  # The second image has its own.
    assert right.max() < 40


def test_a_very_flat_image_is_a_line(tmp_path: Path) -> None:
    rows = torch.ones(1, 1, 400, 4, dtype=torch.uint8)
    maps = {"rows": rows, "predicted": rows[..., 0], "confidence": rows[..., 0]}
    store = ArtifactStore(tmp_path)
    store.write(ArtifactRef("evaluate", "ab" * 32), {"maps": maps}, {"metrics": {}})
    (shown,) = confidence_maps([result("ce", "ab" * 32)], store)
    picture = Image.open(io.BytesIO(base64.b64decode(shown.address.partition(",")[2])))
    assert picture.size == (3 * WIDTH, 1)
