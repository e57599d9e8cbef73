"""Requests for stages, and the base class of their runs, which can be interrupted and resumed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from trainables.augmentations import AUGMENTATIONS
from trainables.calibrators import calibrator_from_recipe, is_calibrator
from trainables.common.devices import computed_on
from trainables.common.errors import InputError, TrainingDivergedError
from trainables.common.later import Tensor, torch
from trainables.common.outlines import outlined
from trainables.common.portable import require_portable
from trainables.common.registry import import_modules
from trainables.common.stages import EVERY_STAGE, ArtifactRef
from trainables.data import Batcher, Inputs, MaskedImages, Pixels, PreparedData, SearchData
from trainables.metrics import METRICS, REPORTED, calibration_report, registered_report, row_terms
from trainables.plugins import Pinned, part_codes
from trainables.refinements import REFINEMENTS
from trainables.schemes import SCHEMES
from trainables.stages.protocols import Protocol, protocol_from
from trainables.store.artifacts import Artifact, ArtifactStore, stage_key

Parts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StageRequest:
    """Everything that determines the outcome of one stage, in plain JSON values.

    The ``upstream_request`` is not part of the key, because ``upstream`` is. It allows the
    upstream stage to be computed again if its artifact is damaged. Later stages compute in the
    precision of the training, so their keys depend on it through ``upstream``. The key also depends
    on ``together``, because the members of a pass change how each of them is rounded.
    """

    stage: str  # One of ``EVERY_STAGE``.
    # Hyper-parameters by name: of a method's parts, a refinement, or a calibrator and objective.
    parts: Parts
    data: str  # The folder of the prepared data.
    model: str
    protocol: Mapping[str, Any]  # The protocol's fields.
    seed: int  # Determines everything random.
    upstream: str | None = None  # Key of the previous stage's artifact; None for a first stage.
    upstream_stage: str | None = None
    upstream_request: Mapping[str, Any] | None = None
    precision: str = "float32"  # The precision of ``train``: ``float32`` or ``bfloat16``.
    portable: bool = False  # Whether all processors give the same bits, see ``require_portable``.
    # The ``parts`` of all requests that one pass computes, including this one; [] if it is alone.
    together: list[Parts] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return the fields by name, without copying values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def members(self) -> list[StageRequest]:
        """Return the requests of the pass that computes this one, in an order that all share."""
        return [self if p == self.parts else replace(self, parts=p) for p in self.together]

    @cached_property
    def resolved_protocol(self) -> Protocol:
        """Return the protocol, including fields with default values."""
        return protocol_from(self.protocol)

    @property
    def ref(self) -> ArtifactRef:
        """Return the reference to the outcome."""
        return ArtifactRef(self.stage, self.key())

    def key(self) -> str:
        """Return the key of the outcome; it depends on the content of data and plugins."""
        return self._key

    @cached_property
    def _key(self) -> str:
        determinants = self.plain()
        del determinants["upstream_request"]
        for name in ("portable", "together"):  # Artifacts from before these fields keep their keys.
            if not determinants[name]:
                del determinants[name]
        determinants["data"] = _data_key(self.data)
        if codes := part_codes(self.stage, self.parts, self.model):
            determinants["code"] = codes
        return stage_key(determinants.pop("stage"), **determinants)


@cache  # Every trial needs the key, and a folder of prepared data never changes.
def _data_key(directory: str) -> str:
    return PreparedData.open(Path(directory)).key


def stage_precision(stage: str, gpus: float, asked: str | None = None) -> str:
    """Return the ``precision`` of a stage's request, which is float32 except for ``train``.

    For ``train`` it is ``asked``, or by default bfloat16 on GPUs and float32 on the CPU.
    """
    return asked or ("bfloat16" if gpus else "float32") if stage == "train" else "float32"


VALIDATION = "val_"


def objective_terms(objective: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Return terms (N,), float64, whose mean over rows of logits (N, K) is an objective.

    Raises:
        ValueError: If the objective has no terms (see ``row_terms``), or the rows are wrong.
    """
    if objective == "nll_after_ts":
        from trainables.calibrators import nll_after_ts_terms  # It imports PyTorch.

        return nll_after_ts_terms(logits, labels)
    return row_terms(objective, logits, labels)


def with_objective(metrics: Mapping[str, float], name: str, found: Artifact) -> dict[str, float]:
    """Return the metrics of a stored outcome, those of plugins, and ``name`` if it is ``val_*``."""
    known = dict(metrics)
    if METRICS.plugged:
        rows = found.tensors("validation")
        own = registered_report(rows["logits"], rows["labels"])
        known |= {f"{VALIDATION}{metric}": value for metric, value in own.items()}
    if name in known or not name.startswith(VALIDATION):
        return known
    rows = found.tensors("validation")
    terms = objective_terms(name.removeprefix(VALIDATION), rows["logits"], rows["labels"])
    return {**known, name: float(terms.mean())}


def lasting(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics to store: all but those of plugins, whose code is not in the key."""
    return {k: v for k, v in metrics.items() if METRICS.code(k.removeprefix(VALIDATION)) is None}


@dataclass(frozen=True)
class TaskData:
    """A task's training and validation data, without test data, which trials must not see.

    For ``graph`` see ``Trainer``. The ``processes`` that train one network together import the
    ``plugins`` first.
    """

    prepared: PreparedData
    device: torch.device
    graph: bool = False
    processes: int = 1
    plugins: tuple[Pinned, ...] = ()

    @cached_property
    def search(self) -> SearchData:
        """Return the training and validation rows."""
        return self.prepared.search()

    @cached_property
    def validation_pixels(self) -> Pixels | None:
        """Return the pixels whose validation logits are stored; None unless images have masks."""
        return self.prepared.info.inputs.pixels(self.search.validation)

    @cached_property
    def validation_labels(self) -> Tensor:
        """Return the validation labels (N,).

        They are the labels of pixels, on the CPU, for segmentation, else of rows, on the device.
        """
        if self.validation_pixels is not None:
            return self.validation_pixels.labels
        return torch.from_numpy(self.search.validation.labels.copy()).to(self.device)

    @cached_property
    def validation_batcher(self) -> Batcher:
        """Return the batcher of the validation rows."""
        return self.prepared.info.inputs.batcher(self.search.validation.values, self.device)


class StageRun(ABC):
    """The computation of one stage's request, on a task's data."""

    runs: ClassVar[dict[str, type[StageRun]]] = {}

    def __init_subclass__(cls, stage: str | None = None) -> None:
        super().__init_subclass__()
        if stage is not None:
            cls.runs[stage] = cls

    def __init__(self, request: StageRequest, store: ArtifactStore, data: TaskData) -> None:
        self.request = request
        self.store = store
        self.data = data
        self.epoch = 0
        self.shared_seconds = 0.0  # Spent by another trial on features that this run uses.
        self.also: tuple[str, ...] = ()  # Further validation metrics besides the report's.

    @classmethod
    def of(cls, request: StageRequest, store: ArtifactStore, data: TaskData) -> StageRun:
        """Return the run of a request of this stage."""
        return cls(request, store, data)

    @property
    @abstractmethod
    def epochs(self) -> int:
        """Return the number of calls of ``run_epoch``."""

    @abstractmethod
    def run_epoch(self) -> dict[str, float]:
        """Compute one epoch and return its metrics; validation metrics begin with ``val_``."""

    @abstractmethod
    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the tensors (by file) and facts to store."""

    def joined(self) -> StageRun:
        """Return a run of all ``members`` of the request that fit into its pass; else this run."""
        return self

    def ask_for(self, metric: str) -> None:
        """Compute the validation metric ``val_*`` in every epoch as well; ignore other names."""
        name = metric.removeprefix(VALIDATION)
        if name != metric and name not in (*REPORTED, *self.also):
            self.also += (name,)

    def remarks(self) -> list[str]:
        """Return messages for the user about the outcome, one line each."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state for resuming; empty if an interrupted stage starts over."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Resume from ``state``."""

    def close(self) -> None:  # noqa: B027
        """Release all resources except memory."""

    def finish(
        self,
        metrics: Mapping[str, float],
        history: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> Artifact:
        """Store the outcome with its history and its cost in seconds; return the artifact."""
        tensors, facts = self.outcome()
        for remark in self.remarks():
            self.store.notice(remark)
        if seconds is not None:
            facts["seconds"] = round(seconds + self.shared_seconds, 3)
        record = {
            "request": self.request.plain(),
            "metrics": lasting(metrics),
            "history": [{**epoch, "metrics": lasting(epoch["metrics"])} for epoch in history],
            "computed": computed_on(
                self.data.device, self.request.precision, len(self.request.together) or 1
            ),
            **facts,
        }
        return self.store.write(self.request.ref, tensors, record)

    def upstream(self) -> Artifact:
        """Return the previous stage's artifact.

        If it is missing or damaged, compute it again from ``upstream_request``, or raise
        ``InputError`` if there is none.
        """
        stage, key = self.request.upstream_stage, self.request.upstream
        if stage is None or key is None:
            raise InputError("this stage needs a previous stage's artifact; the request names none")
        ref, request = ArtifactRef(stage, key), self.request.upstream_request
        if request is None:
            return find_artifact(self.store, ref)
        if found := self.store.find(ref):
            return found
        with self.store.lock(ref):
            if found := self.store.find(ref):  # Another trial may have computed it meanwhile.
                return found
            run = open_stage(StageRequest(**request), self.store, self.data)
            history: list[dict[str, Any]] = []
            while run.epoch < run.epochs:
                metrics = run.run_epoch()
                history.append({"step": run.epoch, "metrics": metrics})
            return run.finish(history[-1]["metrics"], history)

    def check_finite(self, figures: Mapping[str, float], finite: bool) -> None:
        """Raise ``TrainingDivergedError`` if a metric is not finite, or ``finite`` is False."""
        epoch = f"epoch {self.epoch}"
        for name, value in figures.items():
            if not math.isfinite(value):
                raise TrainingDivergedError(f"{name} became {value} in {epoch}")
        if not finite:
            raise TrainingDivergedError(f"validation logits became NaN or infinite in {epoch}")

    def _figures(
        self,
        figures: Mapping[str, float],
        logits: Tensor,
        report: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Add the validation metrics to an epoch's metrics; raise as ``check_finite`` does.

        ``report`` replaces the metrics of ``logits``; it may cover more rows.
        """
        self.check_finite(figures, bool(logits.isfinite().all()))
        if report is None:
            report = calibration_report(logits=logits, labels=self.data.validation_labels)
        labels = self.data.validation_labels.to(logits.device)
        found = {**report, **registered_report(logits, labels)}
        for name in self.also:
            if name not in found:
                found[name] = objective_terms(name, logits, labels).mean().item()
        return {**figures, **{f"{VALIDATION}{name}": value for name, value in found.items()}}

    def _validation_tensors(self, logits: Tensor) -> dict[str, Tensor]:
        pixels = self.data.validation_pixels
        images = {} if pixels is None else {"images": pixels.rows}
        return {"logits": logits, "labels": self.data.validation_labels, **images}


def find_artifact(store: ArtifactStore, ref: ArtifactRef, whole: bool = True) -> Artifact:
    """Return a stored artifact or raise ``InputError``; weights may be missing unless ``whole``."""
    found = store.find(ref, whole)
    if found is None:
        dropped = store.is_dropped(ref)
        fault = "is missing or damaged"
        if dropped:
            fault = "has no weights, because a sweep with `keep: logits` removed them"
        raise InputError(f"artifact {store.path(ref)} {fault}")
    return found


class ValidationRows(NamedTuple):
    """The stored validation rows of an outcome.

    Logits are (N, K); after a calibrator they are log-probabilities. They are cross-fitted if the
    calibrator or refinement was fitted on validation rows. ``labels`` and ``images`` (the number of
    each pixel's image) are (N,), int64.
    """

    logits: Tensor
    labels: Tensor
    images: Tensor | None = None


def validation_rows(store: ArtifactStore, ref: ArtifactRef) -> ValidationRows:
    """Return the stored validation rows of an outcome; raise as ``find_artifact`` does."""
    rows = find_artifact(store, ref, whole=False).tensors("validation")
    return ValidationRows(rows["logits"], rows["labels"], rows.get("images"))


def open_stage(request: StageRequest, store: ArtifactStore, data: TaskData) -> StageRun:
    """Return the run of a stage, or of the pass that it belongs to.

    Raises:
        InputError: If the stage is unknown, or a part does not suit the data.
    """
    if request.portable:
        require_portable()
    if request.stage not in StageRun.runs:
        import_modules("trainables.stages")  # Each stage registers itself.
    if request.stage not in StageRun.runs:
        raise InputError(f"unknown stage {request.stage!r}; stages are: {', '.join(EVERY_STAGE)}")
    for part, values in request.parts.items():
        check_part(part, values, type(data.prepared.info.inputs))
    return StageRun.runs[request.stage].of(request, store, data).joined()


def check_part(part: str, values: Mapping[str, Any], kind: type[Inputs]) -> None:
    """Raise ``InputError`` if a recipe's part, with these values, does not suit a kind of data."""
    for registry in (AUGMENTATIONS, SCHEMES, REFINEMENTS):
        reason = registry.outline(part).not_for.get(kind.kind) if part in registry else None
        if reason:
            raise InputError(f"{part!r} is not for {kind.kind}: {reason}")
    if kind.trains and not issubclass(kind, MaskedImages):
        return
    if not is_calibrator(part):
        return
    if outlined(partial(calibrator_from_recipe, part, values)).fits_on_training:
        raise InputError(
            f"{part!r} with {dict(values)} is fitted on training rows, "
            f"which {kind.kind} do not provide"
        )
