"""Which parts of recipes suit which kind of data."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainables.augmentations import AUGMENTATIONS
from trainables.calibrators import calibrator_from_recipe, is_calibrator
from trainables.common.errors import InputError
from trainables.common.outlines import outlined
from trainables.data import Inputs, MaskedImages
from trainables.refinements import REFINEMENTS
from trainables.schemes import SCHEMES


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
