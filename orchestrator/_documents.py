"""YAML documents that users write: read safely, and what is wrong with them said in one line."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from trainables.errors import InputError

__all__ = ["checked", "read_mapping"]

Model = TypeVar("Model", bound=BaseModel)


def read_mapping(text: str, where: str, what: str, needs: str) -> dict[str, Any]:
    """Read a YAML document that is one mapping, safely, each key once.

    Args:
        text: The document.
        where: Names it in messages.
        what: What it describes, such as ``a sweep``.
        needs: The keys that it must have, for a message.

    Raises:
        InputError: If it is no such document.
    """
    try:
        document = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {_yaml_complaint(error)}") from error
    if document is None:
        raise InputError(f"{where}: the document is empty; {what} needs {needs}")
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise InputError(f"{where}: the document is a {kind}; {what} is a mapping of keys")
    return document


def checked(model: type[Model], document: Mapping[str, Any], where: str) -> Model:
    """Return a document as the model that describes it.

    Raises:
        InputError: If it says something that is not allowed: one line with ``where``, key, value.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InputError(f"{where}: {_complaint(error, model)}") from error
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader that refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping after checking its keys."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _yaml_complaint(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "'\\t'" in problem:
        problem = "a tab stands where YAML allows only spaces"
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _complaint(error: ValidationError, root: type[BaseModel]) -> str:
    """Return the first thing wrong: key, what, value, and what is allowed."""
    first = error.errors()[0]
    where = _dotted(first["loc"])
    if first["type"] == "value_error":
        message = str(first["ctx"]["error"])
        if isinstance(first["ctx"]["error"], InputError):
            return message
        return f"{where}: {message}, got {first['input']!r}"
    if first["type"] == "extra_forbidden":
        allowed = ", ".join(_keys_at(first["loc"][:-1], root))
        return f"{where}: unknown key; allowed are: {allowed}"
    if first["type"] == "missing":
        return f"{where}: is missing"
    return f"{where}: {_lower_first(first['msg'])}, got {_short(first['input'])}"


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step not in ("str", "int", "float", "bool") and not step.startswith("dict["):
            text += f".{step}" if text else step
    return text


def _keys_at(location: tuple[int | str, ...], root: type[BaseModel]) -> list[str]:
    """Return the allowed keys of the mapping at a place in the document."""
    model: Any = root
    for step in location:
        if isinstance(step, str) and step in getattr(model, "model_fields", {}):
            model = _nested(model.model_fields[step].annotation)
    return list(model.model_fields)


def _nested(annotation: Any) -> Any:
    """Return the pydantic model inside an annotation such as ``tuple[TaskSpec, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _nested(argument)
        if found is not None:
            return found
    return None


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _short(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
