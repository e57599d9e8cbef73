"""Reads the search space files that lie beside this module."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from search_spaces._space import KINDS, Parameter, SearchSpace, SpaceError


def space_names(kind: str) -> list[str]:
    """Return the names of all search spaces of one kind, sorted.

    Raises:
        SpaceError: If ``kind`` is not one of ``KINDS``.
    """
    if kind not in KINDS:
        raise SpaceError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    folder = files("search_spaces") / kind
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


@cache
def load_space(kind: str, name: str) -> SearchSpace:
    """Return the search space of one method, refinement, calibrator or fitting objective.

    Raises:
        SpaceError: If there is none of that name, or its file is malformed.
    """
    if name not in space_names(kind):
        raise SpaceError(
            f"no search space {kind}/{name}; there are: {', '.join(space_names(kind))}"
        )
    text = (files("search_spaces") / kind / f"{name}.yaml").read_text(encoding="utf-8")
    return parse_space(kind, name, yaml.safe_load(text))


def parse_space(kind: str, name: str, document: dict[str, Any]) -> SearchSpace:
    """Turn the document of a search space file into a ``SearchSpace``.

    Raises:
        SpaceError: If a field is missing, unknown or out of range; the text names the file.
    """
    where = f"search_spaces/{kind}/{name}.yaml"
    try:
        parameters = {
            key: _parse_parameter(key, fields)
            for key, fields in (document.get("parameters") or {}).items()
        }
        return SearchSpace(name, kind, document["title"], document["source"], parameters)
    except (SpaceError, KeyError, TypeError) as error:
        raise SpaceError(f"{where}: {error}") from error


def _parse_parameter(name: str, fields: dict[str, Any]) -> Parameter:
    known = dict(fields)
    for key in ("choices", "grid"):
        known[key] = tuple(known.get(key) or ())
    return Parameter(name=name, **known)
