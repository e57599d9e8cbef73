"""Reads type, default and choices of a part's parameters from the fields of its class."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from trainables.common.fields import check_choice, check_count, check_number
from trainables.common.registry import Catalogue


@cache
def part_catalogues() -> Mapping[str, tuple[Catalogue[Any], ...]]:
    """Return the catalogues of each kind of search space."""
    # A trial reads a protocol only; it does not import the parts that it lacks.
    from trainables.augmentations import AUGMENTATIONS
    from trainables.calibrators import CALIBRATORS, OBJECTIVES
    from trainables.losses import LOSSES
    from trainables.refinements import REFINEMENTS
    from trainables.schemes import SCHEMES

    return {
        "methods": (LOSSES, AUGMENTATIONS, SCHEMES),
        "refinements": (REFINEMENTS,),
        "calibrators": (CALIBRATORS,),
        "objectives": (OBJECTIVES,),
    }


def own_entry(kind: str, name: str) -> Any:
    """Return the class of a part that no plugin brought."""
    return next(found for each in part_catalogues()[kind] if (found := each.own(name)) is not None)


def declared(entry: Any) -> dict[str, dict[str, Any]]:
    """Return ``type``, ``default`` and ``choices`` of each field that a class declares."""
    described = fields(entry) if is_dataclass(entry) else ()
    return {item.name: _described(item) for item in described if item.init}


def limits_of(item: Field[Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the function that checks a field, None for none, and its limits."""
    check = item.metadata.get("check")
    return getattr(check, "func", check), getattr(check, "keywords", {})


def is_number(item: Field[Any]) -> bool:
    """Return True if a field holds a number, and always one."""
    return limits_of(item)[0] in (check_number, check_count) and item.default is not None


def _described(item: Field[Any]) -> dict[str, Any]:
    function, limits = limits_of(item)
    default = {} if item.default is MISSING else {"default": item.default}
    if function is check_choice:
        return {**default, "type": "categorical", "choices": tuple(limits["choices"])}
    if function in (check_number, check_count):
        return {**default, "type": "int" if function is check_count else "float"}
    return default
