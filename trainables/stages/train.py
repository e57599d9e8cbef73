from typing import Any

import torch
from torch import Tensor

from trainables.data import MaskedBatcher
from trainables.methods import build_method
from trainables.stages.base import StageRequest, StageRun, TaskData
from trainables.stages.data_parallel import Team, lead
from trainables.stages.engine import Trainer, predict
from trainables.stages.pixels import outputs_of, score_pixels
from trainables.store.artifacts import ArtifactStore


def build_trainer(request: StageRequest, data: TaskData, team: Team | None) -> Trainer:
    """Return the trainer of a request for one process of a team, or for a single process."""
    return Trainer(
        request.model,
        build_method(request.parts),
        data.search.train,
        data.prepared.info,
        request.resolved_protocol,
        request.seed,
        data.device,
        request.precision,
        data.graph,
        team,
    )


class TrainStage(StageRun, stage="train"):
    """Trains a network with one method.

    An epoch's validation metrics are those of the weights that would be stored if it were the last
    epoch: its own weights or the best so far (``Protocol.keep``).
    """

    def __init__(self, request: StageRequest, store: ArtifactStore, data: TaskData) -> None:
        super().__init__(request, store, data)
        self._protocol = request.resolved_protocol
        self._team: Team | None = None
        if data.processes > 1:
            place = str(data.prepared.directory)
            self._team = lead(data.processes, data.device, data.plugins, request, place)
        try:
            self._trainer = build_trainer(request, data, self._team)
        except BaseException:
            self.close()
            raise
        if self._protocol.keep == "best_val_nll_after_ts":
            self.also = ("nll_after_ts",)
        self._logits = torch.empty(0)
        self._report: dict[str, float] | None = None
        self._best: dict[str, Any] | None = None

    def close(self) -> None:
        """End the other processes of the team."""
        if self._team is not None:
            self._team.close()

    @property
    def epochs(self) -> int:
        return self._protocol.epochs

    def run_epoch(self) -> dict[str, float]:
        figures = self._trainer.train_epoch()
        self.epoch = self._trainer.epoch
        self._validate()
        figures = self._figures(figures, self._logits, self._report)
        return figures if self._protocol.keep == "last" else self._with_best(figures)

    def _with_best(self, figures: dict[str, float]) -> dict[str, float]:
        """Keep the epoch's weights if it is the best so far, or if no earlier one may be kept.

        Return the metrics with the validation metrics of the kept epoch.
        """
        metric = self._protocol.keep.removeprefix("best_")
        value = -figures[metric] if metric == "val_acc" else figures[metric]
        early = self.epoch <= self._protocol.keep_after + 1
        if self._best is None or early or value < self._best["value"]:
            weights = self._trainer.network.state_dict()
            self._best = {
                "value": value,
                "epoch": self.epoch,
                "metrics": {k: v for k, v in figures.items() if k.startswith("val_")},
                "weights": {k: v.to("cpu", copy=True) for k, v in weights.items()},
                "logits": self._logits,
            }
        return {**figures, **self._best["metrics"]}

    def remarks(self) -> list[str]:
        return self._trainer.remarks()

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the kept weights and their validation logits."""
        weights, logits, kept = self._trainer.network.state_dict(), self._logits, self.epoch
        if self._best is not None:
            weights, logits, kept = (self._best[k] for k in ("weights", "logits", "epoch"))
        files = {"weights": weights, "validation": self._validation_tensors(logits)}
        return files, {"epochs": self.epoch, "kept_epoch": kept}

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's state and the best epoch so far."""
        return {"trainer": self._trainer.state_dict(), "best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the trainer, the logits of its last epoch and the best epoch."""
        self._trainer.load_state_dict(state["trainer"])
        self.epoch = self._trainer.epoch
        self._best = state["best"]
        self._validate()

    def _validate(self) -> None:
        network, batcher = self._trainer.network, self.data.validation_batcher
        pixels, classes = self.data.validation_pixels, self.data.prepared.info.num_classes
        if pixels is None or not isinstance(batcher, MaskedBatcher):
            self._logits = predict(network, batcher)
            return
        outputs = outputs_of(network)
        self._logits, found = score_pixels(outputs, batcher, pixels, classes)
        self._report = found.report()
