"""The stages that a trial computes: train, refine, calibrate; and the one look at test data.

Every stage is a ``StageRun``: it advances epoch by epoch, can be interrupted and resumed, and ends
in an artifact that other stages build on. Nothing here knows Ray, MLflow or Optuna.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainables.artifacts import Artifact, ArtifactStore, stage_key
from trainables.calibrators import Calibrator, calibrator_from_recipe, cross_fit_together
from trainables.data import DatasetInfo, ImageBatcher, PreparedData, SearchData
from trainables.engine import Trainer, default_device, in_batches, place, predict, seeded_network
from trainables.errors import InputError, TrainingDivergedError
from trainables.methods import build_method
from trainables.metrics import calibration_report, evaluation_report
from trainables.models import Network
from trainables.protocols import Protocol, protocol_from
from trainables.refinements import HeadTrainer, build_refinement

__all__ = [
    "STAGES",
    "StageRequest",
    "StageRun",
    "TaskData",
    "evaluate_on_test",
    "open_stage",
    "predictor",
    "stage_precision",
]

STAGES = ("train", "refine", "calibrate")  # In the order in which they build on each other.
FEATURE_VIEWS = 8  # Augmented views of the training set that refinements cycle through.
CROSS_FIT_FOLDS = 5
EVALUATION_VERSION = 2  # Raise it when an evaluation says more or something else.

Parts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StageRequest:
    """All that determines the outcome of one stage, in plain JSON values.

    Attributes:
        stage: One of ``STAGES``.
        parts: Name to hyper-parameters of what this stage builds: the parts of a method, one
            refinement, or one calibrator (with its fitting objective in the name).
        data: Directory of the prepared data.
        model: Name of the network.
        protocol: Fields of the protocol.
        seed: Decides everything random.
        upstream: Key of the artifact that this one builds on; None for ``train``.
        upstream_stage: That artifact's stage; None for ``train``.
        upstream_request: Fields of the request that it came from, so that it can be computed again
            should it be damaged. No determinant: the key of the artifact says as much.
        precision: What ``train`` computes in, ``float32`` or ``bfloat16``, on whatever device. What
            builds on its network uses it as it was trained, so that keys tell of it everywhere.
    """

    stage: str
    parts: Parts
    data: str
    model: str
    protocol: Mapping[str, Any]
    seed: int
    upstream: str | None = None
    upstream_stage: str | None = None
    upstream_request: Mapping[str, Any] | None = None
    precision: str = "float32"

    def key(self) -> str:
        """Return the key of the outcome; the data count by content, not by place."""
        return self._key

    def plain(self) -> dict[str, Any]:
        """Return the fields by name, not copied."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _key(self) -> str:
        # The data's manifest is read for it: too dear for what every epoch asks.
        determinants = self.plain()
        del determinants["upstream_request"]
        if self.precision == "float32":  # What outcomes were before there was a choice.
            del determinants["precision"]
        determinants["data"] = PreparedData.open(Path(self.data)).key
        return stage_key(determinants.pop("stage"), **determinants)


def stage_precision(stage: str, gpus: float) -> str:
    """Return the precision in which a sweep asks for a stage.

    Args:
        stage: One of ``STAGES``.
        gpus: Number or fraction of GPUs that a training is given: on one it computes in bfloat16.
    """
    return "bfloat16" if stage == "train" and gpus else "float32"


@dataclass(frozen=True)
class TaskData:
    """What a search trial may see of a task: training and validation data, never test data.

    Attributes:
        prepared: The task's data.
        device: Where the trial computes.
    """

    prepared: PreparedData
    device: torch.device

    @cached_property
    def search(self) -> SearchData:
        """Return the training and validation images."""
        return self.prepared.search()

    @cached_property
    def validation_labels(self) -> Tensor:
        """Return the labels (N,) of the validation rows."""
        return torch.from_numpy(self.search.validation.labels.copy())

    @cached_property
    def validation_batcher(self) -> ImageBatcher:
        """Return the validation images on the device."""
        return ImageBatcher(self.search.validation.images, self.prepared.info, self.device)


class StageRun(ABC):
    """One stage being computed.

    Args:
        request: What to compute.
        store: Where artifacts lie.
        data: The task's data.
    """

    def __init__(self, request: StageRequest, store: ArtifactStore, data: TaskData) -> None:
        self.request = request
        self.store = store
        self.data = data
        self.epoch = 0
        self.shared_seconds = 0.0  # Spent by another trial on something that both need.

    @property
    @abstractmethod
    def epochs(self) -> int:
        """Return how many times ``run_epoch`` must be called."""

    @abstractmethod
    def run_epoch(self) -> dict[str, float]:
        """Advance one epoch and return its figures; validation metrics begin with ``val_``."""

    @abstractmethod
    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the tensors, by file, and the facts to be stored."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what an interrupted stage needs to go on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""

    def finish(
        self,
        metrics: Mapping[str, float],
        history: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> Artifact:
        """Store the outcome and return the artifact.

        Args:
            metrics: The last epoch's.
            history: ``step`` and ``metrics`` of every epoch, so that a trial that finds this
                artifact has the same learning curve as the one that computed it.
            seconds: What this trial spent on it, if known: the cost of whoever reuses it.
        """
        tensors, facts = self.outcome()
        if seconds is not None:
            facts["seconds"] = round(seconds + self.shared_seconds, 3)
        record = {
            "request": self.request.plain(),
            "metrics": dict(metrics),
            "history": list(history),
            **facts,
        }
        return self.store.write(self.request.stage, self.request.key(), tensors, record)

    def upstream(self) -> Artifact:
        """Return the artifact that this stage builds on, computed again if it is damaged.

        Raises:
            InputError: If it is missing or damaged and the request does not tell how it came about.
        """
        stage, key, request = (
            self.request.upstream_stage,
            self.request.upstream,
            self.request.upstream_request,
        )
        if request is None or stage is None or key is None:
            return _find(self.store, stage, key)
        found = self.store.find(stage, key)
        return found or self._compute_upstream(StageRequest(**request), key)

    def _compute_upstream(self, request: StageRequest, key: str) -> Artifact:
        with self.store.lock(request.stage, key):
            found = self.store.find(request.stage, key)
            if found is not None:
                return found
            run = open_stage(request, self.store, self.data)
            history: list[dict[str, Any]] = []
            while run.epoch < run.epochs:
                metrics = run.run_epoch()
                history.append({"step": run.epoch, "metrics": metrics})
            return run.finish(history[-1]["metrics"], history)

    def check_finite(self, figures: Mapping[str, float], logits: Tensor) -> None:
        """Refuse an epoch's outcome that is no number.

        Raises:
            TrainingDivergedError: If a logit or a figure is not finite.
        """
        epoch = f"epoch {self.epoch}"
        for name, value in figures.items():
            if not math.isfinite(value):
                raise TrainingDivergedError(f"{name} became {value} in {epoch}")
        if not bool(logits.isfinite().all()):
            raise TrainingDivergedError(f"validation logits became NaN or infinite in {epoch}")

    def _figures(self, figures: Mapping[str, float], logits: Tensor) -> dict[str, float]:
        """Add the validation metrics to an epoch's figures.

        Raises:
            TrainingDivergedError: If a logit or a figure is not finite.
        """
        self.check_finite(figures, logits)
        report = calibration_report(logits=logits, labels=self.data.validation_labels)
        return {**figures, **{f"val_{name}": value for name, value in report.items()}}

    def _validation_tensors(self, logits: Tensor) -> dict[str, Tensor]:
        return {"logits": logits, "labels": self.data.validation_labels}


class TrainStage(StageRun):
    """Trains a network from scratch with one method.

    The validation metrics of an epoch are those of the weights that the training would end with if
    this epoch were its last: the epoch's own, or the best ones so far (``Protocol.keep``).
    """

    def __init__(self, request: StageRequest, store: ArtifactStore, data: TaskData) -> None:
        super().__init__(request, store, data)
        self._protocol = protocol_from(dict(request.protocol))
        self._trainer = Trainer(
            request.model,
            build_method(request.parts),
            data.search.train,
            data.prepared.info,
            self._protocol,
            request.seed,
            data.device,
            request.precision,
        )
        self._logits = torch.empty(0)
        self._best: dict[str, Any] | None = None

    @property
    def epochs(self) -> int:
        """Return the protocol's epochs."""
        return self._protocol.epochs

    def run_epoch(self) -> dict[str, float]:
        """Train one epoch and validate."""
        figures = self._trainer.train_epoch()
        self.epoch = self._trainer.epoch
        self._validate()
        figures = self._figures(figures, self._logits)
        return figures if self._protocol.keep == "last" else self._with_best(figures)

    def _with_best(self, figures: dict[str, float]) -> dict[str, float]:
        """Remember the epoch if it is the best one; put the best one's metrics into its figures.

        As long as every epoch is too early to be kept, the newest counts as the best.
        """
        nll = self._protocol.keep == "best_val_nll"
        value = figures["val_nll"] if nll else -figures["val_acc"]
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

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the weights that are kept and their validation logits."""
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
        self._best = state.get("best")
        self._validate()

    def _validate(self) -> None:
        self._logits = predict(self._trainer.network, self.data.validation_batcher)


class RefineStage(StageRun):
    """Retrains the classifier on the stored features of a trained network."""

    def __init__(
        self,
        request: StageRequest,
        store: ArtifactStore,
        data: TaskData,
        features: dict[str, Tensor] | None = None,
    ) -> None:
        super().__init__(request, store, data)
        ((name, parameters),) = request.parts.items()
        protocol = protocol_from(dict(request.protocol))
        if features is None:
            features, self.shared_seconds = load_features(self.upstream(), store, data)
        self.features = {part: values.to(data.device) for part, values in features.items()}
        self.trainer = HeadTrainer(
            build_refinement(name, **parameters),
            list(self.features["views"]),
            torch.from_numpy(data.search.train.labels.copy()).to(data.device),
            num_classes=data.prepared.info.num_classes,
            batch_size=protocol.batch_size,
            **_head_penalties(protocol),
            seed=request.seed,
            device=data.device,
        )
        self._epochs = self.trainer.refinement.epochs

    @property
    def epochs(self) -> int:
        """Return the refinement's epochs."""
        return self._epochs

    def run_epoch(self) -> dict[str, float]:
        """Retrain the head for one epoch and validate."""
        figures = self.trainer.train_epoch()
        self.epoch = self.trainer.epoch
        return self._figures(figures, self.head_logits())

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the head's weights and validation logits."""
        files = {
            "head": self.trainer.head.state_dict(),
            "validation": self._validation_tensors(self.head_logits()),
        }
        return files, {"epochs": self.epoch}

    def state_dict(self) -> dict[str, Any]:
        """Return the head trainer's state."""
        return {"trainer": self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the head trainer."""
        self.trainer.load_state_dict(state["trainer"])
        self.epoch = self.trainer.epoch

    @torch.inference_mode()
    def head_logits(self) -> Tensor:
        """Return the head's logits (M, K) of the validation rows."""
        self.trainer.head.eval()
        return self.trainer.head(self.features["validation"].float()).cpu()


def _head_penalties(protocol: Protocol) -> dict[str, float]:
    """Return the momentum and weight decay of a head, which is always trained by SGD.

    Those of the training, except that AdamW's decoupled decay is no L2 penalty: then the values of
    the MaC-Cal paper hold.
    """
    if protocol.optimizer == "sgd":
        return {"momentum": protocol.momentum, "weight_decay": protocol.weight_decay}
    return {"momentum": 0.9, "weight_decay": 5e-4}


class CalibrateStage(StageRun):
    """Fits a post-hoc calibrator on validation logits, judged by cross-fitting.

    The metrics are those of rows that the calibrator which scored them was not fitted on (law 4);
    the calibrator that is stored is fitted on all rows.
    """

    epochs = 1

    def run_epoch(self) -> dict[str, float]:
        """Cross-fit for the metrics, and fit on all validation rows."""
        (fitted,) = fit_calibrators([self])
        return self.take(*fitted)

    def take(self, calibrator: Calibrator, held_out: Tensor) -> dict[str, float]:
        """Take over the calibrator and the cross-fitted log-probabilities; return the figures.

        Raises:
            TrainingDivergedError: If a log-probability or a figure is not finite.
        """
        self._calibrator, self._held_out = calibrator, held_out.float()
        self.epoch = 1
        figures = {f"fit_{name}": value for name, value in calibrator.summary().items()}
        return self._figures(figures, held_out)

    def build(self) -> Calibrator:
        """Return the calibrator that is asked for, not fitted."""
        return _calibrator(self.request.parts)

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the calibrator and the cross-fitted log-probabilities."""
        files = {
            "calibrator": self._calibrator.state_dict(),
            "validation": self._validation_tensors(self._held_out),
        }
        return files, {"summary": self._calibrator.summary()}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the single step starts anew."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the single step starts anew."""


def fit_calibrators(stages: Sequence[CalibrateStage]) -> list[tuple[Calibrator, Tensor]]:
    """Fit the calibrators of stages that build on the same artifact and share their seed.

    Returns:
        For each the calibrator, and the cross-fitted log-probabilities of the validation rows.
    """
    first = stages[0]
    rows = first.upstream().tensors("validation")
    builds = [stage.build for stage in stages]
    seed = first.request.seed
    return cross_fit_together(builds, rows["logits"], rows["labels"], CROSS_FIT_FOLDS, seed)


_RUNS: dict[str, type[StageRun]] = dict(
    zip(STAGES, (TrainStage, RefineStage, CalibrateStage), strict=True)
)


def open_stage(request: StageRequest, store: ArtifactStore, data: TaskData) -> StageRun:
    """Make ready to compute a stage.

    Raises:
        InputError: If the stage is unknown or what it builds on is missing.
        ValueError: If a hyper-parameter is out of its range.
    """
    if request.stage not in _RUNS:
        raise InputError(f"unknown stage {request.stage!r}; there are: {', '.join(STAGES)}")
    return _RUNS[request.stage](request, store, data)


def load_features(
    trained: Artifact, store: ArtifactStore, data: TaskData
) -> tuple[dict[str, Tensor], float]:
    """Return the features of a trained network, computed once for all refinements of it.

    They are mapped from the store's file, so that trials side by side share one copy in memory, and
    exactly what the network gives: float32, or bfloat16 where that loses nothing because the
    network itself computed in it.

    Returns:
        ``views`` (V, N, D): the training set as V augmented views drawn from fixed seeds (one,
        unaugmented, where the protocol does not augment), and ``validation`` (M, D); and the
        seconds that another trial has spent on them.
    """
    key = stage_key("features", upstream=trained.key, views=FEATURE_VIEWS)
    found = store.find("features", key)
    if found is None:
        with store.lock("features", key):
            found = store.find("features", key)
            if found is None:
                started = time.monotonic()
                files = {"features": _compute_features(trained, data)}
                facts = {"upstream": trained.key, "seconds": time.monotonic() - started}
                return store.write("features", key, files, facts).tensors("features"), 0.0
    return found.tensors("features"), found.record.get("seconds", 0.0)


def _compute_features(trained: Artifact, data: TaskData) -> dict[str, Tensor]:
    network, protocol = restore_network(trained, data.prepared.info, data.device)
    kind = protocol.augmentation or data.prepared.info.augmentation
    train = ImageBatcher(data.search.train.images, data.prepared.info, data.device)
    count = 1 if kind == "none" else FEATURE_VIEWS
    views = [_lossless(_features(network, train, kind, seed)) for seed in range(count)]
    validation = _lossless(_features(network, data.validation_batcher))
    whole = torch.float32 if any(view.dtype == torch.float32 for view in views) else torch.bfloat16
    return {"views": torch.stack([view.to(whole) for view in views]), "validation": validation}


def _lossless(values: Tensor) -> Tensor:
    """Return float32 values in bfloat16, in half the memory, if they are the same there."""
    half = values.bfloat16()
    return half if torch.equal(half.float(), values) else values


def _features(network: Network, batcher: ImageBatcher, kind: str = "none", seed: int = 0) -> Tensor:
    """Return the features (N, D) of one view of all images, drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    return in_batches(
        network, lambda images: network.features(batcher.view(images, kind, generator)), batcher
    )


def restore_network(
    trained: Artifact, info: DatasetInfo, device: torch.device
) -> tuple[Network, Protocol]:
    """Return the network of a ``train`` artifact as it was trained, and its protocol."""
    request = trained.record["request"]
    method = build_method(request["parts"])
    network = seeded_network(request["model"], info, request["seed"])
    network = method.scheme.attach(network, info.num_classes)
    network.load_state_dict(trained.tensors("weights"))
    # Records of before there was a choice do not name the precision.
    placed = place(network, device, request.get("precision", "float32"))
    return placed, protocol_from(dict(request["protocol"]))


def _restore_head(refined: Artifact, feature_dim: int, num_classes: int) -> nn.Module:
    ((name, parameters),) = refined.record["request"]["parts"].items()
    head = build_refinement(name, **parameters).build_head(feature_dim, num_classes)
    head.load_state_dict(refined.tensors("head"))
    return head.eval()


def _calibrator(parts: Parts) -> Calibrator:
    ((part, parameters),) = parts.items()
    return calibrator_from_recipe(part, parameters)


def _find(store: ArtifactStore, stage: str | None, key: str | None) -> Artifact:
    if stage is None or key is None:
        raise InputError("this stage builds on another, but no upstream artifact is named")
    found = store.find(stage, key)
    if found is None:
        raise InputError(f"artifact {store.path(stage, key)} is missing or damaged")
    return found


def evaluate_on_test(
    store: ArtifactStore,
    stage: str,
    key: str,
    prepared: PreparedData,
    device: torch.device | None = None,
) -> tuple[dict[str, float], Artifact]:
    """Read the test data once, for a chosen configuration.

    Args:
        store: Where artifacts lie.
        stage: Stage of the chosen artifact.
        key: Its key.
        prepared: The task's data; this process must not be sealed.
        device: Where networks run; ``default_device()`` if left out.

    Returns:
        The metrics, fractions, as ``trainables.metrics.evaluation_report`` names them, and the
        artifact with the log-probabilities and labels of every test row.

    Raises:
        TestDataSealedError: If this process runs search trials.
        InputError: If an artifact is missing or damaged.
    """
    test = prepared.test()
    evaluation_key = stage_key(
        "evaluate", upstream=key, data=prepared.key, version=EVALUATION_VERSION
    )
    found = store.find("evaluate", evaluation_key)
    if found is None:
        outputs = predictor(store, stage, key, prepared.info, device or default_device())
        log_probs = outputs(test.images).log_softmax(1).float()
        labels = torch.from_numpy(test.labels.copy())
        metrics = evaluation_report(log_probs, labels)
        found = store.write(
            "evaluate",
            evaluation_key,
            {"test": {"log_probs": log_probs, "labels": labels}},
            {"metrics": metrics, "upstream": key},
        )
    return dict(found.record["metrics"]), found


def predictor(
    store: ArtifactStore, stage: str, key: str, info: DatasetInfo, device: torch.device
) -> Callable[[np.ndarray], Tensor]:
    """Return a function from images (N, H, W, C), uint8, to logits or log-probabilities (N, K).

    It goes down the chain of stages that ends in an artifact; nothing but images is read by it.

    Raises:
        InputError: If an artifact is missing or damaged.
    """
    artifact = _find(store, stage, key)
    request = artifact.record["request"]
    if stage == "calibrate":
        before = request["upstream_stage"], request["upstream"]
        inner = predictor(store, *before, info, device)
        calibrator = _calibrator(request["parts"])
        calibrator.load_state_dict(artifact.tensors("calibrator"))
        return torch.inference_mode()(lambda images: calibrator(inner(images)))
    trained = artifact if stage == "train" else _find(store, "train", request["upstream"])
    network, _ = restore_network(trained, info, device)
    if stage == "train":
        return lambda images: predict(network, ImageBatcher(images, info, device))
    head = _restore_head(artifact, network.feature_dim, info.num_classes)
    return torch.inference_mode()(
        lambda images: head(_features(network, ImageBatcher(images, info, device)))
    )
