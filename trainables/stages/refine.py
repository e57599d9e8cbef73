"""The refine stage: retrains the classifier on the features of a frozen network."""

import math
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainables.calibrators import stratified_folds
from trainables.common.devices import computed_on, fits
from trainables.common.errors import InputError, StorageError, TrainingDivergedError
from trainables.common.stages import ArtifactRef
from trainables.metrics import row_terms
from trainables.models import Network
from trainables.refinements import (
    REFINEMENTS,
    FittedRefinement,
    HeadsTogether,
    HeadTrainer,
    build_refinement,
)
from trainables.stages.base import StageRequest, StageRun, TaskData
from trainables.stages.calibrate import CROSS_FIT_FOLDS
from trainables.stages.networks import extract_features, restore_network
from trainables.store.artifacts import Artifact, ArtifactStore, stage_key


class RefineStage(StageRun, stage="refine"):
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
        refinement = build_refinement(name, **parameters)
        protocol = request.resolved_protocol
        by_sgd = protocol.optimizer == "sgd"
        if features is None:
            features, self.shared_seconds = load_features(
                self.upstream(), store, data, refinement.views
            )
        # Views that do not fit on the device stay on the host; each epoch copies one view.
        views, validation = features["views"], features["validation"].to(data.device)
        views = views.to(data.device) if fits(views.nbytes, data.device) else views
        self.features = {"views": views, "validation": validation}
        self.trainer = HeadTrainer(
            refinement,
            list(views),
            torch.from_numpy(data.search.train.labels.copy()).to(data.device),
            num_classes=data.prepared.info.num_classes,
            batch_size=protocol.batch_size,
            # Values for Adam or AdamW do not suit SGD, so use those of the MaC-Cal paper instead.
            momentum=protocol.momentum if by_sgd else 0.9,
            weight_decay=protocol.weight_decay if by_sgd else 5e-4,
            seed=request.seed,
            device=data.device,
            held_out=(validation, data.validation_labels),
        )
        self._own: Tensor | None = None  # The network's own logits if the head was rejected.
        self._judged: Tensor | None = None  # The logits behind the last epoch's metrics.

    @classmethod
    def of(cls, request: StageRequest, store: ArtifactStore, data: TaskData) -> StageRun:
        """Return the run of a request, a ``FitHeadStage`` if its refinement does not train."""
        (name,) = request.parts
        fitted = issubclass(REFINEMENTS.get(name), FittedRefinement)
        return (FitHeadStage if fitted else cls)(request, store, data)

    @property
    def epochs(self) -> int:
        return self.trainer.refinement.epochs

    def joined(self) -> StageRun:
        """Return a run that trains all members of the pass with the same ``together_key``.

        Members that cannot be built fail in their own trials. Members whose outcomes are stored are
        trained as well: without them, the others would be rounded in another way.
        """
        key = self.trainer.refinement.together_key()
        if key is None:
            return self
        members = [self if r is self.request else self._other(r) for r in self.request.members]
        fitting = [m for m in members if m and m.trainer.refinement.together_key() == key]
        return RefineTogether(self, fitting) if len(fitting) > 1 else self

    def _other(self, request: StageRequest) -> "RefineStage | None":
        try:
            return RefineStage(request, self.store, self.data, self.features)
        except torch.OutOfMemoryError:
            raise  # Of the device: the pass may fit there later.
        except (ValueError, TypeError, RuntimeError, ArithmeticError):
            return None

    def run_epoch(self) -> dict[str, float]:
        return self.judged(self.trainer.train_epoch(), self.head_logits())

    def judged(self, figures: Mapping[str, float], logits: Tensor) -> dict[str, float]:
        """Add the validation metrics of the head's logits to the metrics of an epoch.

        If the final head is rejected, they are those of the network's own logits.

        Raises:
            TrainingDivergedError: If a metric or logit is not finite, or the final head lost its
                accuracy.
        """
        self.epoch, self._judged = self.trainer.epoch, logits
        self.check_finite(figures, bool(logits.isfinite().all()))
        if self.epoch == self.epochs:
            own = self.upstream().tensors("validation")["logits"].to(logits.device)
            labels = self.data.validation_labels
            if self.trainer.refinement.accept == "better" and not _is_better(logits, own, labels):
                self._own = logits = own
            else:
                counts = np.bincount(self.data.search.validation.labels)
                _check_accuracy(logits, own, labels, chance=float(counts.max() / counts.sum()))
        return self._figures(figures, logits)

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the head's weights, the validation logits, and whether the head is accepted."""
        judged = self.head_logits() if self._judged is None else self._judged
        logits = judged if self._own is None else self._own
        files = {
            "head": self.trainer.head.state_dict(),
            "validation": self._validation_tensors(logits),
        }
        return files, {"epochs": self.epoch, "accepted": self._own is None}

    def remarks(self) -> list[str]:
        """Return the refinement's messages about its head, unless the head was rejected."""
        refinement = self.trainer.refinement
        return refinement.remarks(self.trainer.head) if self._own is None else []

    def state_dict(self) -> dict[str, Any]:
        return {"trainer": self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state["trainer"])
        self.epoch = self.trainer.epoch

    @torch.inference_mode()
    def head_logits(self) -> Tensor:
        """Return the head's logits (M, K) of the validation rows."""
        self.trainer.head.eval()
        return self.trainer.head(self.features["validation"].float())


class FitHeadStage(StageRun):
    """Fits the head of a ``FittedRefinement`` on validation features; metrics are cross-fitted."""

    epochs = 1

    @torch.inference_mode()
    def run_epoch(self) -> dict[str, float]:
        """Fit the head on all validation rows.

        The metrics are those of heads that were fitted on the other folds.
        """
        ((name, parameters),) = self.request.parts.items()
        refinement = build_refinement(name, **parameters)
        assert isinstance(refinement, FittedRefinement)
        self._refinement = refinement
        network = restore_network(self.upstream(), self.data.prepared.info, self.data.device)
        if type(network).classify is not Network.classify:
            raise InputError(
                f"{name} needs a network with one linear classifier; remove it from the recipe"
            )
        features = extract_features(network, self.data.validation_batcher).float()
        features, labels = features.to(self.data.device), self.data.validation_labels
        self._head, figures = self._fitted(network, features, labels)
        self._logits = self._head(features)
        folds = min(CROSS_FIT_FOLDS, len(labels))
        fold = stratified_folds(labels, folds, self.request.seed)
        for held in (fold == index for index in range(folds)):
            head, _ = self._fitted(network, features[~held], labels[~held])
            self._logits[held] = head(features[held])
        self.epoch = 1
        return self._figures(figures, self._logits)

    def _fitted(
        self, network: Network, features: Tensor, labels: Tensor
    ) -> tuple[nn.Module, dict[str, float]]:
        head = self._refinement.build_head(network.feature_dim, network.num_classes)
        head = head.to(features.device).eval()
        return head, self._refinement.fit_head(head, network.classifier, features, labels)

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the head's weights and the cross-fitted validation logits."""
        validation = self._validation_tensors(self._logits)
        return {"head": self._head.state_dict(), "validation": validation}, {"epochs": 1}

    def remarks(self) -> list[str]:
        return self._refinement.remarks(self._head)


class RefineTogether(StageRun):
    """The run of one refinement that also trains others of the same extractor.

    For the trial of that refinement it is an ordinary run. When it finishes, it stores the outcomes
    of the others, so that their own trials need no process. Another refinement that diverges or
    loses its accuracy is dropped, and fails in its own trial. Whichever member is asked for, all
    have the same bits.

    Args:
        run: The run of the refinement that is asked for.
        members: The runs of the pass, including ``run``.
    """

    def __init__(self, run: RefineStage, members: Sequence[RefineStage]) -> None:
        super().__init__(run.request, run.store, run.data)
        self.shared_seconds = run.shared_seconds
        self._run, self._members = run, list(members)
        self._heads = HeadsTogether([member.trainer for member in members])
        self._histories: dict[str, list[dict[str, Any]]] = {
            other.request.key(): [] for other in self._others
        }

    @property
    def _others(self) -> list[RefineStage]:
        return [member for member in self._members if member is not self._run]

    @property
    def epochs(self) -> int:
        return self._run.epochs

    def ask_for(self, metric: str) -> None:
        """Compute another validation metric for every member."""
        for member in self._members:
            member.ask_for(metric)

    def run_epoch(self) -> dict[str, float]:
        """Train and validate all heads for one epoch; return the metrics of the requested head."""
        figures = self._heads.train_epoch()
        outputs = self._heads.logits(self._run.features["validation"])
        self.epoch = self._run.trainer.epoch
        found: dict[str, float] = {}
        for member, own, logits in zip(tuple(self._members), figures, outputs, strict=True):
            if member is self._run:
                found = member.judged(own, logits)
                continue
            try:
                metrics = member.judged(own, logits)
            except TrainingDivergedError:
                self._leave_out(member)
                continue
            self._histories[member.request.key()].append({"step": self.epoch, "metrics": metrics})
        return found

    def _leave_out(self, member: RefineStage) -> None:
        self._members.remove(member)
        self._heads.drop(member.trainer)

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the tensors and facts of the requested refinement."""
        return self._run.outcome()

    def remarks(self) -> list[str]:
        return self._run.remarks()

    def finish(
        self,
        metrics: Mapping[str, float],
        history: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> Artifact:
        """Store all new outcomes, each with its share of the cost; return the requested one."""
        share = None if seconds is None else seconds / len(self._members)
        for other in self._others:
            if self.store.contains(other.request.ref):
                continue
            own = self._histories[other.request.key()]
            other.finish(own[-1]["metrics"], own, share)
        return super().finish(metrics, history, share)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all heads."""
        return {
            **self._run.state_dict(),
            "others": {other.request.key(): other.state_dict() for other in self._others},
            "histories": self._histories,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume; drop members that are not in the state."""
        self._run.load_state_dict(state)
        self.epoch = self._run.epoch
        others, self._histories = state["others"], state["histories"]
        for other in self._others:
            key = other.request.key()
            if key in others:
                other.load_state_dict(others[key])
            else:
                self._leave_out(other)


def _is_better(logits: Tensor, own: Tensor, labels: Tensor) -> bool:
    """Return True if ``logits`` lower the NLL by more than the paired standard error."""
    gain = row_terms("nll", own, labels) - row_terms("nll", logits, labels)
    return bool(gain.mean() > _standard_error(gain))


def _check_accuracy(logits: Tensor, own: Tensor, labels: Tensor, chance: float) -> None:
    """Raise ``TrainingDivergedError`` if a head lost 3/4 of the accuracy above chance.

    The lost accuracy must exceed this limit by two standard errors.
    """
    before, after = (row_terms("acc", each, labels) for each in (own, logits))
    lost = before - after
    if lost.mean() - 2 * _standard_error(lost) > max(0.0, 0.75 * (float(before.mean()) - chance)):
        raise TrainingDivergedError(
            f"validation accuracy collapsed to {after.mean():.1%}; the network's own classifier "
            f"has {before.mean():.1%}, and always choosing the most frequent class {chance:.1%}"
        )


def _standard_error(difference: Tensor) -> float:
    return float(difference.std()) / len(difference) ** 0.5


FEATURE_VIEWS = 8  # Number of augmented views of the training set that refinements cycle through.


def load_features(
    trained: Artifact, store: ArtifactStore, data: TaskData, views: str = "augmented"
) -> tuple[dict[str, Tensor], float]:
    """Return the features of a trained network, computed once for all its refinements.

    The features are mapped from the store's file, so that parallel trials share one copy in memory.
    They equal the network's outputs, in float32, or in bfloat16 if this changes no value.
    ``views="original"`` is a single unaugmented view, even if the protocol augments.

    Returns:
        The features, and the seconds that another trial spent on them (0 if this call computed
        them). ``views`` (V, N, D) has V views of the training set, augmented from fixed seeds (one
        unaugmented view if the protocol does not augment); ``validation`` is (M, D).
    """
    kind = _augmentation(trained, data)
    own = views == "original" and kind != "none"
    key = stage_key("features", upstream=trained.key, views="original" if own else FEATURE_VIEWS)
    found = store.find(ArtifactRef("features", key))
    if found is None:
        with store.lock(ArtifactRef("features", key)):
            found = store.find(ArtifactRef("features", key))  # Another trial may have stored it.
            if found is None:
                started = time.monotonic()
                features = _compute_features(trained, data, "none" if own else kind, store.root)
                facts = {
                    "upstream": trained.key,
                    "seconds": time.monotonic() - started,
                    "computed": computed_on(data.device, trained.record["request"]["precision"]),
                }
                found = store.write(ArtifactRef("features", key), {"features": features}, facts)
                return found.tensors("features"), 0.0
    return found.tensors("features"), found.record["seconds"]


def _augmentation(trained: Artifact, data: TaskData) -> str:
    asked = trained.record["request"]["protocol"].get("augmentation")
    return asked or data.prepared.info.inputs.augmentation


def _compute_features(
    trained: Artifact, data: TaskData, kind: str, scratch: Path
) -> dict[str, Tensor]:
    network = restore_network(trained, data.prepared.info, data.device)
    inputs = data.prepared.info.inputs
    train = inputs.batcher(data.search.train.values, data.device)
    count = 1 if kind == "none" else FEATURE_VIEWS
    views = (extract_features(network, train, kind, seed) for seed in range(count))
    stacked = _stacked(views, count, scratch)
    validation = _lossless(extract_features(network, data.validation_batcher))
    return {"views": stacked, "validation": validation}


def _stacked(views: Iterable[Tensor], count: int, scratch: Path) -> Tensor:
    """Return ``count`` views (N, D) as a file-backed tensor (V, N, D), see ``_lossless``."""
    stacked = torch.empty(0)
    for position, view in enumerate(map(_lossless, views)):
        if position == 0:
            stacked = _in_file((count, *view.shape), view.dtype, scratch)
        elif view.dtype == torch.float32 != stacked.dtype:
            stacked = _in_file(stacked.shape, view.dtype, scratch).copy_(stacked)
        stacked[position] = view
    return stacked


def _in_file(shape: tuple[int, ...], dtype: torch.dtype, scratch: Path) -> Tensor:
    """Return a tensor in an unnamed file, which disappears with the tensor."""
    count = math.prod(shape)
    try:
        with tempfile.NamedTemporaryFile(dir=scratch) as file:
            # Reserve the whole file: if the disk became full later, the process would crash.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
            return torch.from_file(file.name, shared=True, size=count, dtype=dtype).view(shape)
    except OSError as error:
        raise StorageError(f"cannot write features below {scratch}: {error}") from error


def _lossless(values: Tensor) -> Tensor:
    """Return float32 values as bfloat16, to save memory, if that does not change them."""
    half = values.bfloat16()
    return half if torch.equal(half.float(), values) else values
