"""Read and validate YAML documents of users; every error message is one line."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainables.common.errors import InputError
from trainables.common.paths import control_fault
from trainables.common.yaml_text import decoded, short

SWEEP = "a sweep", "name, tasks and recipes"  # Arguments of ``read_mapping``.
LARGEST_FILE = 128 * 2**10  # Bytes: a hundred times a usual file; parsing takes two seconds.
Model = TypeVar("Model", bound=BaseModel)


def read_document(path: Traversable, where: str) -> str:
    """Return the text of a YAML file that a user wrote; ``where`` names it in messages."""
    if fault := control_fault(str(path)):
        raise InputError(f"{where}: cannot be a path: {fault}")
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: cannot be read: {error}") from error
    if len(content) > LARGEST_FILE:
        raise InputError(f"{where}: expected at most {LARGEST_FILE // 2**10} KiB, got more")
    return decoded(content, where)


def validate(
    model: type[Model],
    document: Mapping[str, Any],
    where: str,
    context: Mapping[str, Any] | None = None,
) -> Model:
    """Return a document as an instance of its model; ``context`` is for the model's validators."""
    with naming(where):
        try:
            return model.model_validate(document, context=context)
        except ValidationError as error:
            raise InputError(_complaint(error, model)) from error


@contextmanager
def naming(where: str, errors: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Turn ``errors`` of the block into an ``InputError`` that begins with ``where``."""
    try:
        yield
    except errors as error:
        raise InputError(f"{where}: {error}") from error


def near_names(name: str, known: Collection[str]) -> str:
    """Return the part of a message that lists similar names, or an empty string."""
    near = get_close_matches(name, known, n=3)
    return f"; near are: {', '.join(near)}" if near else ""


def _complaint(error: ValidationError, root: type[BaseModel]) -> str:
    """Return the message of the first fault, and the locations of up to three others."""
    faults = error.errors(include_url=False)
    first = _first(faults)
    locations = [each["loc"] for each in faults]
    # pydantic drops invalid entries and then also calls the list too short: skip such parents.
    parents = {place[:end] for place in locations for end in range(len(place))}
    others = dict.fromkeys(_dotted(place) for place in locations if place not in parents)
    for shown in (faults[0], first):
        others.pop(_dotted(shown["loc"]), None)
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    also = f"; also wrong or missing: {', '.join([*others][:3])}{more}" if others else ""
    return f"{_fault(first, root)}{also}"


def _first(faults: list[ErrorDetails]) -> ErrorDetails:
    first = faults[0]
    if first["type"] == "missing":  # Perhaps the key is misspelled.
        unknown = {
            str(one["loc"][-1]): one
            for one in faults
            if one["type"] == "extra_forbidden" and one["loc"][:-1] == first["loc"][:-1]
        }
        near = get_close_matches(str(first["loc"][-1]), unknown, n=1)
        first = unknown[near[0]] if near else first
    return first


def _fault(fault: ErrorDetails, root: type[BaseModel]) -> str:
    """Return a fault's message: key, problem, value, and allowed values."""
    where = _dotted(fault["loc"])
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        if isinstance(fault["ctx"]["error"], InputError):
            return message
        # Without a location the input is the whole document, which is too long to repeat.
        return f"{where}: {message}, got {short(fault['input'])}" if where else message
    if fault["type"] == "extra_forbidden":
        keys = _keys_at(fault["loc"][:-1], root)
        hint = near_names(str(fault["loc"][-1]), keys)
        return f"{where}: unknown key{hint}; allowed are: {', '.join(keys)}"
    if fault["type"] == "missing":
        return f"{where}: is missing"
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return f"{where}: {message}, got {short(fault['input'])}"


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step not in ("str", "int", "float", "bool") and not step.startswith("dict["):
            text += f".{step}" if text else step
    return text


def _keys_at(location: tuple[int | str, ...], root: type[BaseModel]) -> list[str]:
    """Return the allowed keys of the mapping at a location in the document."""
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
