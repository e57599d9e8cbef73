"""Runs very short stages on a few digits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from trainables.data import PreparedData, SplitSpec, prepare
from trainables.stages import StageRequest, StageRun, TaskData, open_stage
from trainables.stages.protocols import protocol_from
from trainables.store.artifacts import Artifact, ArtifactStore

SPLIT = SplitSpec(validation=300, test=350, train_limit=400)
PROTOCOL: dict[str, Any] = {
    "epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "schedule": "cosine",
    "augmentation": "none",
}
# Small networks that have every kind of layer of ours between them.
EVERY_LAYER = (
    *("convnet", "deeplabv3-small", "densenet40", "gpool-cnn", "resnet110-sd", "resnet8"),
    *("whitened-cnn", "wrn-16-4"),
)
MACAL: dict[str, Any] = {"macal": {"epochs": 4, "lr": 0.1}}


def few_digits(folder: Path, split: SplitSpec = SPLIT) -> PreparedData:
    return prepare("digits", folder, split, folder / "data")


def write_masks(folder: Path, train: int = 72, val: int = 0, test: int = 12) -> str:
    """Dark and light halves with noise, the right half of another class in every other row."""
    generator = np.random.default_rng(5)
    parts = {"train": train, "val": val, "test": test}
    for place in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for part, count in parts.items():
        names = [f"{part}{number}" for number in range(count)]
        for number, name in enumerate(names):
            mask = np.zeros((24, 32 - 8 * (number % 3 == 2)), np.uint8)
            mask[:, 16:] = 1 + number % 2
            noise = generator.integers(0, 40, (*mask.shape, 3))
            image = Image.fromarray((noise + 100 * mask[..., None]).astype(np.uint8))
            mask[0] = 255
            image.save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
            Image.fromarray(mask).save(folder / "SegmentationClass" / f"{name}.png")
        if names:
            path = folder / "ImageSets/Segmentation" / f"{part}.txt"
            path.write_text("\n".join(names) + "\n")
    return f"voc:{folder}"


def request(
    data: PreparedData,
    stage: str = "train",
    parts: Mapping[str, Mapping[str, Any]] | None = None,
    upstream: Artifact | None = None,
    seed: int = 0,
    protocol: Mapping[str, Any] | None = None,
) -> StageRequest:
    return StageRequest(
        stage=stage,
        parts=parts or {"ce": {}},
        data=str(data.directory),
        model="convnet",
        protocol=protocol_from({**PROTOCOL, **(protocol or {})}).to_dict(),
        seed=seed,
        upstream=upstream.key if upstream else None,
        upstream_stage=upstream.stage if upstream else None,
    )


class Workshop:
    """Prepared digits and a store for stages."""

    def __init__(self, folder: Path) -> None:
        self.prepared = few_digits(folder)
        self.store = ArtifactStore(folder / "artifacts")
        self.data = TaskData(self.prepared, torch.device("cpu"))

    def open(self, wanted: StageRequest) -> StageRun:
        return open_stage(wanted, self.store, self.data)

    def compute(self, wanted: StageRequest) -> Artifact:
        stage = self.open(wanted)
        metrics: dict[str, float] = {}
        while stage.epoch < stage.epochs:
            metrics = stage.run_epoch()
        return stage.finish(metrics)

    def chain(self) -> tuple[Artifact, Artifact, Artifact]:
        """Return a training, its refinement and the calibration of that."""
        trained = self.compute(request(self.prepared))
        refined = self.compute(request(self.prepared, "refine", MACAL, trained))
        calibrated = self.compute(request(self.prepared, "calibrate", {"ts": {}}, refined))
        return trained, refined, calibrated
