"""The maps of test images on the page, from what an evaluation stored."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from orchestrator.report._maps import WIDTH, confidence_maps
from orchestrator.storage.results import StudyResult
from trainables.store.artifacts import ArtifactStore


def result(recipe: str, *predictions: str) -> StudyResult:
    return StudyResult(
        sweep="s", task="t", recipe=recipe, status="finished", predictions=predictions
    )


def test_a_wrong_pixel_is_red_and_void_is_white(tmp_path: Path) -> None:
    rows = torch.zeros(3, 40, 80, 4, dtype=torch.uint8)
    rows[..., 3] = 254  # Beyond an image of 20 x 40 pixels.
    rows[:, :20, :40, 3] = 1
    rows[:, :20, :10, 3] = 255
    predicted = torch.ones(3, 40, 80, dtype=torch.uint8)
    predicted[:, :, 25:] = 0
    maps = {"rows": rows, "predicted": predicted, "confidence": torch.full_like(predicted, 200)}
    store = ArtifactStore(tmp_path)
    key = "ab" * 32
    store.write("evaluate", key, {"maps": maps}, {"metrics": {}})
    store.write("evaluate", key[::-1], {"test": {"labels": predicted}}, {"metrics": {}})
    results = [result("ce", key, key[::-1]), result("ls", key[::-1]), result("fl")]
    one = {name: values[:1] for name, values in maps.items()}
    store.write("evaluate", "cd" * 32, {"maps": one}, {"metrics": {}})
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
    assert image.max() < 10
    assert np.abs(confidence.astype(int) - 200).max() < 10
    assert errors.max() < 40
    void, wrong = (picture[40, 2 * WIDTH + x] for x in (10, WIDTH - 20))
    assert void.min() > 220
    assert abs(int(wrong[0]) - 200) < 25  # As bright as it is confident.
    assert wrong[1:].max() < 60
