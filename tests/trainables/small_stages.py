"""Runs very short stages on a few digits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

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
MACAL: dict[str, Any] = {"macal": {"epochs": 4, "lr": 0.1}}


def few_digits(folder: Path, split: SplitSpec = SPLIT) -> PreparedData:
    return prepare("digits", folder, split, folder / "data")


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
