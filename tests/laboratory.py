"""Short stages on the digits, for tests of what a training comes to."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from search_spaces import load_space
from trainables.data import SplitSpec, prepare
from trainables.stages import StageRequest, StageRun, TaskData, open_stage
from trainables.stages.protocols import protocol_from
from trainables.store.artifacts import Artifact, ArtifactStore

OVERCONFIDENT = {
    "epochs": 30,
    "batch_size": 64,
    "lr": 0.1,
    "momentum": 0.98,
    "weight_decay": 0.0,
    "schedule": "cosine",
}
"""A training whose network says 98 % where it is right in 94 %."""


@dataclass(frozen=True)
class Outcome:
    """What a stage came to.

    Attributes:
        run: The stage after its last epoch.
        metrics: Figures of that epoch.
        logits: Validation logits, or cross-fitted log-probabilities, (N, K).
    """

    run: StageRun
    metrics: Mapping[str, float]
    logits: Tensor

    @property
    def accuracy(self) -> float:
        return self.metrics["val_acc"]

    @property
    def confidence(self) -> float:
        return float(self.logits.softmax(1).amax(1).mean())

    def artifact(self) -> Artifact:
        return self.run.finish(self.metrics)


class Laboratory:
    """Computes stages on digits with the small convnet."""

    def __init__(self, folder: Path, split: SplitSpec) -> None:
        self._prepared = prepare("digits", folder, split, folder / "data")
        self._data = TaskData(self._prepared, torch.device("cpu"))
        self._store = ArtifactStore(folder / "artifacts")

    def compute(
        self,
        stage: str,
        parts: Mapping[str, Mapping[str, Any]],
        protocol: Mapping[str, Any],
        upstream: Artifact | None = None,
        seed: int = 0,
    ) -> Outcome:
        """Run a stage to its end."""
        if stage == "refine":  # As a sweep does: what a request leaves out has its earlier meaning.
            parts = {
                name: {**load_space("refinements", name).default_point(given=values), **values}
                for name, values in parts.items()
            }
        request = StageRequest(
            stage=stage,
            parts=parts,
            data=str(self._prepared.directory),
            model="convnet",
            protocol=protocol_from(protocol).to_dict(),
            seed=seed,
            upstream=upstream.key if upstream else None,
            upstream_stage=upstream.stage if upstream else None,
        )
        run = open_stage(request, self._store, self._data)
        metrics: dict[str, float] = {}
        while run.epoch < run.epochs:
            metrics = run.run_epoch()
        return Outcome(run, metrics, run.outcome()[0]["validation"]["logits"])
