from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from trainables.augmentations import AUGMENTATIONS
from trainables.calibrators import calibrator_from_recipe, is_calibrator
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.data import Inputs, MaskedImages, PreparedData
from trainables.plugins import part_codes
from trainables.refinements import REFINEMENTS
from trainables.schemes import SCHEMES
from trainables.stages.protocols import Protocol, protocol_from
from trainables.store.artifacts import stage_key

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


def check_part(part: str, values: Mapping[str, Any], kind: type[Inputs]) -> None:
    """Make sure that a part of a recipe, with values as far as known, suits a kind of data.

    Raises:
        InputError: If it does not; the text says why.
    """
    for registry in (AUGMENTATIONS, SCHEMES, REFINEMENTS):
        reason = registry.get(part).not_for.get(kind.kind) if part in registry else None
        if reason:
            raise InputError(f"{part!r} is not for {kind.kind}: {reason}")
    if kind.trains and not issubclass(kind, MaskedImages):
        return
    if is_calibrator(part) and calibrator_from_recipe(part, values).fits_on_training:
        raise InputError(
            f"{part!r} with {dict(values)} is fitted on the rows that a network was trained on, "
            f"whole ones, which {kind.kind} do not have"
        )


def stage_precision(stage: str, gpus: float, asked: str | None = None) -> str:
    """Return a stage's precision: of trainings ``asked`` or, on GPUs, bfloat16; else float32."""
    return asked or ("bfloat16" if gpus else "float32") if stage == "train" else "float32"
