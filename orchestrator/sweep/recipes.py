"""Recipes (rows of a table), their parts, and the dependencies between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from orchestrator.sweep.documents import naming, near_names
from search_spaces import Parameter, SearchSpace, SpaceError, known_spaces
from trainables.calibrators import (
    CALIBRATORS,
    calibrator_from_recipe,
    is_calibrator,
    parse_calibrator,
)
from trainables.common.errors import InputError
from trainables.common.outlines import outlined
from trainables.common.stages import GIVEN
from trainables.methods import check_method, method_kind, method_names
from trainables.refinements import REFINEMENTS, build_refinement

NO_VARIANTS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Recipe:
    """A method, or ``("given",)`` for given logits, with an optional refinement and calibrator."""

    method: tuple[str, ...]
    refinement: str | None = None
    calibrator: str | None = None

    @cached_property
    def name(self) -> str:
        """Return the recipe's name, such as ``mbls+macal+ts``, or ``ts`` for given logits."""
        return "+".join(self.parts[1:] if self.given and self.calibrator else self.parts)

    @property
    def given(self) -> bool:
        """Return True if it starts from given logits instead of a training."""
        return self.method == (GIVEN,)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of all parts, in order."""
        return (*self.method, *filter(None, (self.refinement, self.calibrator)))

    @property
    def stage(self) -> str:
        """Return the stage of this recipe's study."""
        if self.calibrator:
            return "calibrate"
        return "refine" if self.refinement else GIVEN if self.given else "train"

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Return the parts that this recipe's study searches."""
        if self.calibrator:
            return (self.calibrator,)
        return (self.refinement,) if self.refinement else self.method

    @property
    def upstream(self) -> Recipe | None:
        """Return the recipe of the previous stage; None for a first stage."""
        if self.calibrator:
            return Recipe(self.method, self.refinement)
        return Recipe(self.method) if self.refinement else None

    @property
    def chain(self) -> tuple[Recipe, ...]:
        """Return the recipes of all stages, from the first to this one."""
        return (*(self.upstream.chain if self.upstream else ()), self)


def parse_recipe(
    text: str, variants: Mapping[str, str] = NO_VARIANTS, given: bool = False
) -> Recipe:
    """Read a recipe such as ``mbls+macal+ts``; for ``given`` logits, a calibrator or ``given``.

    ``variants`` maps a sweep's variants to the names of their parts.
    """
    if given:
        return _parse_given(text, variants)
    method: list[str] = []
    refinement = calibrator = None
    for part in text.split("+"):
        base = variants.get(part, part)
        if method_kind(base) and not refinement and not calibrator:
            method.append(part)
        elif base in REFINEMENTS and method and not refinement and not calibrator:
            refinement = part
        elif is_calibrator(base) and method and not calibrator:
            calibrator = part
        else:
            raise InputError(_complaint(text, part, variants))
    recipe = Recipe(tuple(method), refinement, calibrator)
    _check_composition(recipe, variants)
    return recipe


def _parse_given(text: str, variants: Mapping[str, str]) -> Recipe:
    if text == GIVEN:
        return Recipe((GIVEN,))
    if not is_calibrator(variants.get(text, text)):
        raise InputError(
            f"recipe {text!r}: tasks with logits allow only {GIVEN!r} and calibrators, such as "
            f"'ts' or 'ets-cls'; calibrators: {', '.join(CALIBRATORS.names())}"
        )
    return Recipe((GIVEN,), None, text)


def _check_composition(recipe: Recipe, variants: Mapping[str, str]) -> None:
    method = [variants.get(part, part) for part in recipe.method]
    if len(set(method)) != len(method):
        raise InputError(f"recipe {recipe.name!r}: a part occurs twice; delete one")
    with naming(f"recipe {recipe.name!r}"):
        check_method({part: {} for part in method})
    if recipe.refinement:
        refinement = variants.get(recipe.refinement, recipe.refinement)
        excludes = REFINEMENTS.outline(refinement).excludes
        for part in method:
            if part in excludes:
                raise InputError(f"recipe {recipe.name!r} is excluded: {excludes[part]}")


def _complaint(text: str, part: str, variants: Mapping[str, str]) -> str:
    known = {
        "method": method_names(),
        "refinement": REFINEMENTS.names(),
        "calibrator": CALIBRATORS.names(),
        "variant": sorted(variants),
    }
    if any(part in names for names in known.values()) or is_calibrator(part):
        return f"recipe {text!r}: {part!r} is misplaced; write method[+refinement][+calibrator]"
    hint = near_names(part, [name for names in known.values() for name in names])
    listing = "; ".join(f"{kind}s: {', '.join(names)}" for kind, names in known.items() if names)
    return (
        f"recipe {text!r}: {part!r} is unknown{hint} ({listing}); `calsweep list methods`, "
        "`... refinements` and `... calibrators` show all"
    )


def expand_recipes(
    patterns: Iterable[str], variants: Mapping[str, str] = NO_VARIANTS, given: bool = False
) -> list[Recipe]:
    """Replace wildcards in recipes, keeping their order.

    ``*+macal`` adds ``macal`` to every plain method in the list; ``f*+ts`` adds ``ts`` to every
    plain method that begins with ``f``.
    """
    patterns = list(patterns)
    plain = [text for text in patterns if "*" not in text and _is_method(text, variants)]
    recipes: dict[str, Recipe] = {}
    for pattern in patterns:
        for text in _expand(pattern, plain):
            recipe = parse_recipe(text, variants, given)
            if recipe.name in recipes:
                raise InputError(f"recipe {recipe.name!r} occurs twice; delete one")
            recipes[recipe.name] = recipe
    return list(recipes.values())


def _expand(pattern: str, plain: list[str]) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    head, _, tail = pattern.partition("+")
    matches = [method for method in plain if fnmatchcase(method, head)]
    if not matches or "*" in tail:
        listing = ", ".join(plain) or "none"
        hint = f"; for given logits write {tail!r}" if tail and not plain else ""
        raise InputError(
            f"recipe {pattern!r}: the wildcard matches no plain method of the list ({listing})"
            f"{hint}"
        )
    return [f"{method}+{tail}" if tail else method for method in matches]


def _is_method(text: str, variants: Mapping[str, str]) -> bool:
    return all(method_kind(variants.get(part, part)) for part in text.split("+"))


def part_spaces(part: str) -> list[SearchSpace]:
    """Return the search spaces of one part; see ``known_spaces``."""
    if not is_part(part):
        parse_calibrator(part)  # Its error lists the calibrators.
    return known_spaces(part)


def parameters_of(part: str) -> dict[str, Parameter]:
    """Return all parameters of a part, including those of a calibrator's objective."""
    return {name: p for space in part_spaces(part) for name, p in space.parameters.items()}


def is_part(name: str) -> bool:
    """Return True if there is a method, refinement or calibrator of that name."""
    return bool(method_kind(name)) or name in (*REFINEMENTS.names(), GIVEN) or is_calibrator(name)


def near_parts(name: str) -> str:
    """Return the part of a message that lists similar names of parts, or an empty string."""
    return near_names(name, [*method_names(), *REFINEMENTS.names(), *CALIBRATORS.names()])


def check_names(where: str, part: str, names: Collection[str]) -> None:
    """Raise ``InputError`` if a name is not a parameter of a part."""
    known = parameters_of(part)
    for name in names:
        if name not in known:
            listing = ", ".join(known) or "none"
            near = near_names(name, known)
            raise InputError(
                f"{where}: unknown parameter {name!r}{near}; parameters of {part!r} are: {listing}"
            )


def check_values(where: str, part: str, values: Mapping[str, Any]) -> None:
    """Check values by building the part; they may be outside the searched range."""
    check_names(where, part, values)
    if part == GIVEN:
        return
    with naming(where, (ValueError, TypeError)):
        if method_kind(part):
            check_method({part: values})
        elif part in REFINEMENTS:
            outlined(partial(build_refinement, part, **values))
        else:
            outlined(partial(calibrator_from_recipe, part, values))


def narrow(parameter: Parameter, change: Mapping[str, Any]) -> Parameter:
    """Return a parameter with another ``low``, ``high``, ``scale`` or ``choices``."""
    if parameter.type == "categorical" and not change.get("choices"):
        raise SpaceError(f"{parameter.name} takes choices, not a range")
    if "choices" in change and len(change) > 1:
        raise SpaceError(f"{parameter.name} takes either choices or a range, not both")
    values = {**parameter.__dict__, **change, "defaults": {}, "variants": {}, "search": True}
    values |= {"grid": (), "grids": {}, "tuned": (), "open": ()}
    if "choices" in change:
        values["type"] = "categorical"
        if parameter.default not in values["choices"]:
            values["default"] = values["choices"][0]
    elif values["low"] <= values["high"]:
        values["default"] = min(max(parameter.default, values["low"]), values["high"])
    return Parameter(**values)
