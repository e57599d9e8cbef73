"""The base of every stage's run: it advances epoch by epoch and can be interrupted and resumed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
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
from trainables.metrics import (
    METRICS,
    REPORTED,
    calibration_report,
    registered_report,
    row_terms,
)
from trainables.plugins import Pinned, part_codes
from trainables.refinements import REFINEMENTS
from trainables.schemes import SCHEMES
from trainables.stages.protocols import Protocol, protocol_from
from trainables.store.artifacts import Artifact, ArtifactStore, stage_key

Parts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StageRequest:
    """All that determines the outcome of one stage, in plain JSON values.

    The ``upstream_request`` is no determinant, as the key of the artifact says as much: with it,
    what this stage builds on can be computed again should it be damaged. What builds on a network
    uses it in the precision that it was trained in, so that keys tell of it everywhere.
    """

    stage: str  # One of ``EVERY_STAGE``.
    # Name to hyper-parameters: parts of a method, a refinement, or a calibrator with its objective.
    parts: Parts
    data: str  # Directory of the prepared data.
    model: str
    protocol: Mapping[str, Any]  # Its fields.
    seed: int  # Decides everything random.
    upstream: str | None = None  # Key of the artifact that this one builds on; None for ``train``.
    upstream_stage: str | None = None
    upstream_request: Mapping[str, Any] | None = None
    precision: str = "float32"  # What ``train`` computes in; or ``bfloat16``, on whatever device.
    portable: bool = False  # Whether all processors give the same bits, see ``require_portable``.

    def plain(self) -> dict[str, Any]:
        """Return the fields by name, not copied."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def resolved_protocol(self) -> Protocol:
        """Return the protocol with all its fields."""
        return protocol_from(self.protocol)

    @property
    def ref(self) -> ArtifactRef:
        """Return the reference to the outcome."""
        return ArtifactRef(self.stage, self.key())

    def key(self) -> str:
        """Return the key of the outcome; data and the code of plugins count by content."""
        return self._key

    @cached_property
    def _key(self) -> str:
        determinants = self.plain()
        del determinants["upstream_request"]
        if not self.portable:  # Artifacts from before there was this field keep their keys.
            del determinants["portable"]
        determinants["data"] = _data_key(self.data)
        if codes := part_codes(self.stage, self.parts, self.model):
            determinants["code"] = codes
        return stage_key(determinants.pop("stage"), **determinants)


@cache  # A search asks for every trial, and a folder of prepared data never gets other content.
def _data_key(directory: str) -> str:
    return PreparedData.open(Path(directory)).key


def stage_precision(stage: str, gpus: float, asked: str | None = None) -> str:
    """Return a stage's precision: of trainings ``asked`` or, on GPUs, bfloat16; else float32."""
    return asked or ("bfloat16" if gpus else "float32") if stage == "train" else "float32"


VALIDATION = "val_"


def objective_terms(objective: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Return terms (N,), float64, whose mean over rows of logits (N, K) is an objective.

    Raises:
        ValueError: If it has no terms (see ``row_terms``), or the rows are wrong.
    """
    if objective == "nll_after_ts":
        from trainables.calibrators import nll_after_ts_terms  # It imports PyTorch.

        return nll_after_ts_terms(logits, labels)
    return row_terms(objective, logits, labels)


def with_objective(metrics: Mapping[str, float], name: str, found: Artifact) -> dict[str, float]:
    """Return the metrics of a stored outcome, with ``val_*`` of that name and of all plugins."""
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
    """Return the metrics that are stored: not those of plugins, whose code is in no key."""
    return {k: v for k, v in metrics.items() if METRICS.code(k.removeprefix(VALIDATION)) is None}


@dataclass(frozen=True)
class TaskData:
    """What a search trial may see of a task: training and validation data, never test data.

    For ``graph`` see ``Trainer``; ``plugins`` are what the ``processes`` that train one network
    together have to import first.
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
        """Return the pixels whose validation logits are stored; None where rows are whole."""
        return self.prepared.info.inputs.pixels(self.search.validation)

    @cached_property
    def validation_labels(self) -> Tensor:
        """Return the labels (N,) of the rows, on the device, or the pixels that have logits."""
        if self.validation_pixels is not None:
            return self.validation_pixels.labels
        return torch.from_numpy(self.search.validation.labels.copy()).to(self.device)

    @cached_property
    def validation_batcher(self) -> Batcher:
        """Return the validation rows on the device."""
        return self.prepared.info.inputs.batcher(self.search.validation.values, self.device)


class StageRun(ABC):
    """One stage being computed: a request, on a task's data, for a store."""

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
        self.shared_seconds = 0.0  # Spent by another trial on something that both need.
        self.also: tuple[str, ...] = ()  # Validation metrics asked for beyond the report.

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

    def joined(self, others: Sequence[StageRequest]) -> StageRun:
        """Return the run, with those requests that come next and cost little in the same pass."""
        return self

    def ask_for(self, metric: str) -> None:
        """Add a validation metric, ``val_*``, to those of every epoch."""
        name = metric.removeprefix(VALIDATION)
        if name != metric and name not in (*REPORTED, *self.also):
            self.also += (name,)

    def remarks(self) -> list[str]:
        """Return notes on the outcome for people, a line each."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state that an interrupted stage resumes from; empty if it starts anew."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Resume from ``state``."""

    def close(self) -> None:  # noqa: B027
        """Release all resources besides memory."""

    def finish(
        self,
        metrics: Mapping[str, float],
        history: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> Artifact:
        """Store the outcome with the curve and the seconds that each reuse saves."""
        tensors, facts = self.outcome()
        for remark in self.remarks():
            self.store.notice(remark)
        if seconds is not None:
            facts["seconds"] = round(seconds + self.shared_seconds, 3)
        record = {
            "request": self.request.plain(),
            "metrics": lasting(metrics),
            "history": [{**epoch, "metrics": lasting(epoch["metrics"])} for epoch in history],
            "computed": computed_on(self.data.device, self.request.precision),
            **facts,
        }
        return self.store.write(self.request.ref, tensors, record)

    def upstream(self) -> Artifact:
        """Return the artifact that this stage builds on, computed again if it is damaged."""
        stage, key = self.request.upstream_stage, self.request.upstream
        if stage is None or key is None:
            raise InputError("this stage builds on another, but no upstream artifact is named")
        ref, request = ArtifactRef(stage, key), self.request.upstream_request
        if request is None:
            return find_artifact(self.store, ref)
        if found := self.store.find(ref):
            return found
        with self.store.lock(ref):
            if found := self.store.find(ref):  # Another trial may have been first.
                return found
            run = open_stage(StageRequest(**request), self.store, self.data)
            history: list[dict[str, Any]] = []
            while run.epoch < run.epochs:
                metrics = run.run_epoch()
                history.append({"step": run.epoch, "metrics": metrics})
            return run.finish(history[-1]["metrics"], history)

    def check_finite(self, figures: Mapping[str, float], finite: bool) -> None:
        """Raise ``TrainingDivergedError`` if a figure, or what the flag is of, is not finite."""
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
        """Add the validation metrics to an epoch's figures; raises as ``check_finite`` does.

        They are the ``report`` where more than the rows of ``logits`` was looked at.
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
    """Return an artifact to build on, perhaps without weights; or raise ``InputError``."""
    found = store.find(ref, whole)
    if found is None:
        dropped = store.is_dropped(ref)
        fault = "has no weights any more (keep: logits)" if dropped else "is missing or damaged"
        raise InputError(f"artifact {store.path(ref)} {fault}")
    return found


class ValidationRows(NamedTuple):
    """The stored validation rows of an outcome: labels, and images of pixels, are (N,), int64.

    The logits (N, K) of a calibrator are cross-fitted log-probabilities.
    """

    logits: Tensor
    labels: Tensor
    images: Tensor | None = None


def validation_rows(store: ArtifactStore, ref: ArtifactRef) -> ValidationRows:
    """Return the stored validation rows of an outcome; raises as ``find_artifact`` does."""
    rows = find_artifact(store, ref, whole=False).tensors("validation")
    return ValidationRows(rows["logits"], rows["labels"], rows.get("images"))


def open_stage(
    request: StageRequest,
    store: ArtifactStore,
    data: TaskData,
    others: Sequence[StageRequest] = (),
) -> StageRun:
    """Make ready to compute a stage; see ``StageRun.joined`` for ``others``."""
    if request.portable:
        require_portable()
    if request.stage not in StageRun.runs:
        import_modules("trainables.stages")  # Each stage registers itself.
    if request.stage not in StageRun.runs:
        raise InputError(f"unknown stage {request.stage!r}; there are: {', '.join(EVERY_STAGE)}")
    for part, values in request.parts.items():
        check_part(part, values, type(data.prepared.info.inputs))
    run = StageRun.runs[request.stage](request, store, data)
    return run.joined(others) if others else run


def check_part(part: str, values: Mapping[str, Any], kind: type[Inputs]) -> None:
    """Make sure that a part of a recipe, with values as far as known, suits a kind of data."""
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
            f"{part!r} with {dict(values)} is fitted on the rows that a network was trained on, "
            f"whole ones, which {kind.kind} do not have"
        )
