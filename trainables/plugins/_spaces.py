"""The search space of a plugin's part, from a YAML file or from its checked fields."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import PurePosixPath
from typing import Any

from search_spaces import SearchSpace, SpaceError, declared, is_number, limits_of, parse_space
from trainables.common.errors import InputError
from trainables.common.registry import Addition
from trainables.common.yaml_text import decoded, read_mapping
from trainables.plugins._find import SPACE, Source, is_sweep

INSIDE = 1e-3  # Distance of a search from an excluded end, as a share of the range.


def space_of(addition: Addition, kind: str, source: Source, alone: bool) -> SearchSpace:
    """Return the search space of a part.

    It is read from a YAML file, or built from the fields of the part if there is no such file. In a
    package, the YAML file is ``NAME.yaml`` in any folder. Next to a plugin that is one file, the
    YAML file has the same stem and describes the part of that name, or the only part (``alone``).
    """
    where = f"plugin {source.name}: {addition.catalogue.noun} {addition.name!r}"
    found = _yaml_of(addition.name, source, alone)
    if found is None:
        return _from_fields(addition, kind, f"plugin {source.name}", where)
    text = decoded(source.files[found], f"{where}: {found}")
    document = read_mapping(text, f"{where}: {found}", "a search space", "title and source")
    try:
        space = parse_space(kind, addition.name, document, found, lambda: addition.entry)
        parameters = space.parameters
    except SpaceError as error:
        raise InputError(f"{where}: {error}") from error
    known = [*inspect.signature(addition.entry).parameters]
    for name in parameters:
        if name not in known:
            listing = ", ".join(known) or "none"
            raise InputError(f"{where}: {found}: no parameter {name!r}; parameters are: {listing}")
    return space


def _yaml_of(name: str, source: Source, alone: bool) -> str | None:
    """Return the relative path of a part's YAML file; None if there is none."""
    if source.is_package:
        paths = map(PurePosixPath, sorted(source.files))
        named = (str(path) for path in paths if path.name == f"{name}{SPACE}")
        return next((path for path in named if not is_sweep(source.files[path])), None)
    own = f"{source.name}{SPACE}"
    return own if own in source.files and (alone or source.name == name) else None


def _from_fields(addition: Addition, kind: str, source: str, where: str) -> SearchSpace:
    entry = addition.entry
    described = fields(entry) if is_dataclass(entry) else ()
    # Fields of base classes are keyword-only. Include only the numbers among them, which are the
    # epochs and learning rate of a refinement.
    own = {i.name: i for i in described if i.init and (not i.kw_only or is_number(i))}
    for name, argument in inspect.signature(entry).parameters.items():
        if name not in own and argument.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise InputError(
                f"{where}: parameter {name!r} is not a field; declare it by number, count, choice "
                f"or flag, or describe it in a YAML file next to the code"
            )
    known = declared(entry)
    found = {name: _parameter(item, known[name], source, where) for name, item in own.items()}
    title = (inspect.getdoc(entry) or addition.name).splitlines()[0].rstrip(".")
    always = getattr(entry, "fits_on_training", False) is True
    return SearchSpace(addition.name, kind, title, source, found, dict, {} if always else None)


def _parameter(
    item: Field[Any], known: Mapping[str, Any], source: str, where: str
) -> dict[str, Any]:
    """Return a parameter's fields; a number without two finite limits is not searched."""
    default = item.default
    if default is MISSING or not isinstance(default, bool | int | float | str):
        raise InputError(f"{where}: field {item.name!r} needs a default: a number, text or flag")
    limits = limits_of(item)[1]
    found: dict[str, Any] = {"symbol": "", "source": source, **known}
    if not is_number(item):
        choices = known.get("choices", (default,))
        return {**found, "type": "categorical", "choices": choices, "search": len(choices) > 1}
    low, high = limits["low"], limits.get("high", math.inf)
    if not (math.isfinite(low) and math.isfinite(high)):
        low = high = default
    margin = INSIDE * (high - low)
    return {
        **found,
        "low": min(low + margin, default) if limits.get("open_low") else low,
        "high": max(high - margin, default) if limits.get("open_high") else high,
        "search": low < high,
    }
