"""YAML documents that users write: read safely, with one line for each fault."""

import math
import re
from collections.abc import Collection, Hashable, Mapping
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainables.common.addresses import redacted
from trainables.common.errors import InputError

LARGEST_FILE = 128 * 2**10  # Bytes: read in two seconds, a hundred times a usual file.
LARGEST_DOCUMENT = 2**20  # Characters of all values, repeated as often as aliases repeat them.
DEEPEST = 32
LONGEST_NUMBER = 100  # Characters.
TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
# No text in YAML 1.1 only, as PyYAML reads it: `on` is true, 010 is 8, 1:30 is 90; and dates.
YAML_1_1 = re.compile(r"(?i:yes|no|on|off)|[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*[:-].*")
FLOAT, EXPONENT = "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")

Model = TypeVar("Model", bound=BaseModel)


def read_document(path: Traversable, where: str) -> str:
    """Return the text of a YAML file that a user wrote; ``where`` names it in messages.

    Raises:
        InputError: If it cannot be read, is no UTF-8, or is larger than such a file can be.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: cannot be read: {error}") from error
    if len(content) > LARGEST_FILE:
        raise InputError(f"{where}: is larger than {LARGEST_FILE // 2**10} KiB, the most allowed")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        place = f"byte {content[error.start]:#04x} in line {line}"
        raise InputError(f"{where}: is not UTF-8 ({place}); save it as UTF-8") from error


def read_mapping(text: str, where: str, what: str, needs: str) -> dict[str, Any]:
    """Read a YAML document that is one mapping, safely, each key once.

    Messages name it by ``where``, ``what`` it describes (``a sweep``) and the keys that it needs.

    Raises:
        InputError: If it is no such document.
    """
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {_yaml_complaint(error)}") from error
    except (OverflowError, ValueError) as error:
        # Escapes and directives with numbers that PyYAML does not check.
        raise InputError(f"{where}: cannot be read as YAML: {error}") from error
    if document is None:
        raise InputError(f"{where}: the document is empty; {what} needs {needs}")
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise InputError(f"{where}: the document is a {kind}; {what} is a mapping of keys")
    return document


def validate(
    model: type[Model],
    document: Mapping[str, Any],
    where: str,
    context: Mapping[str, Any] | None = None,
) -> Model:
    """Return a document as the model that describes it; ``context`` is for its validators.

    Raises:
        InputError: If it says something that is not allowed: one line with ``where``, key, value.
    """
    try:
        return model.model_validate(document, context=context)
    except ValidationError as error:
        raise InputError(f"{where}: {_complaint(error, model)}") from error
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def near_names(name: str, known: Collection[str]) -> str:
    """Return the part of a message that lists what a misspelled name may mean, or nothing."""
    near = get_close_matches(name, known, n=3)
    return f"; near are: {', '.join(near)}" if near else ""


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key that stands twice, and what would take long or no end."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._size = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Build a node after counting its levels, and the characters that aliases repeat."""
        event, before = self.peek_event(), self._size
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"is nested deeper than {DEEPEST} levels", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._size += 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
            self._sizes[id(node)] = self._size - before
        elif id(node) in self._sizes:
            self._size += self._sizes[id(node)]
        else:
            raise _refused(f"alias {_short(event.anchor)} is within what it stands for", event)
        if self._size > LARGEST_DOCUMENT:
            limit = f"more than {LARGEST_DOCUMENT:,} characters"
            raise _refused(f"the values, repeated by aliases, are {limit}", event)
        return node

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        """Return a node's tag; what would surprise people as a number or a truth is text."""
        surprises = kind is yaml.ScalarNode and implicit[0] and YAML_1_1.fullmatch(str(value))
        return TEXT if surprises else super().resolve(kind, value, implicit)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping after checking its keys."""
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == MERGE:
                raise _refused("merge keys (<<) are not read; write the keys out", key_node)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refused(f"a {type(key).__name__} cannot be a key", key_node)
            if key in seen:
                raise _refused(f"key {_short(key)} stands twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value; what its type cannot be made of is wrong YAML."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise _refused(f"{_short(node.value)} is no valid {kind}", node) from error

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return a scalar's text; one that becomes a number must be short."""
        text = super().construct_scalar(node)
        if node.tag != TEXT and len(text) > LONGEST_NUMBER:
            kind = node.tag.rpartition(":")[2]
            raise _refused(
                f"{_short(text)}, taken for {kind}, has {len(text)} characters, allowed are "
                f"{LONGEST_NUMBER}; put text into quotes",
                node,
            )
        return text


class _Dumper(yaml.SafeDumper):
    """A dumper that puts into quotes what ``_Loader`` would read as a number."""


for _each in (_Loader, _Dumper):  # 1e-3, which is text in YAML 1.1.
    _each.add_implicit_resolver(FLOAT, EXPONENT, [*"+-0123456789"])


def write_mapping(document: Mapping[str, Any]) -> str:
    """Return the text of a document, as ``read_mapping`` reads it."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


def _refused(problem: str, place: Any) -> yaml.MarkedYAMLError:
    """Return the error that names the line of a node or an event."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _yaml_complaint(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "'\\t'" in problem:
        problem = "a tab stands where YAML allows only spaces"
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _complaint(error: ValidationError, root: type[BaseModel]) -> str:
    """Return the first fault, and the places of the others."""
    found = error.errors(include_url=False)
    first = _first(found)
    locations = [each["loc"] for each in found]
    # A list of wrong entries is too short as well.
    around = {place[:end] for place in locations for end in range(len(place))}
    others = dict.fromkeys(_dotted(place) for place in locations if place not in around)
    for told in (found[0], first):
        others.pop(_dotted(told["loc"]), None)
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    also = f"; also wrong or missing: {', '.join([*others][:3])}{more}" if others else ""
    return f"{_fault(first, root)}{also}"


def _first(found: list[ErrorDetails]) -> ErrorDetails:
    first = found[0]
    if first["type"] == "missing":  # Or it stands there misspelled.
        unknown = {
            str(one["loc"][-1]): one
            for one in found
            if one["type"] == "extra_forbidden" and one["loc"][:-1] == first["loc"][:-1]
        }
        near = get_close_matches(str(first["loc"][-1]), unknown, n=1)
        first = unknown[near[0]] if near else first
    return first


def _fault(fault: ErrorDetails, root: type[BaseModel]) -> str:
    """Return a fault: key, what, value, and the allowed ones."""
    where = _dotted(fault["loc"])
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        if isinstance(fault["ctx"]["error"], InputError):
            return message
        # Without a place it is about the whole document, which nobody wants to read again.
        return f"{where}: {message}, got {_short(fault['input'])}" if where else message
    if fault["type"] == "extra_forbidden":
        keys = _keys_at(fault["loc"][:-1], root)
        hint = near_names(str(fault["loc"][-1]), keys)
        return f"{where}: unknown key{hint}; allowed are: {', '.join(keys)}"
    if fault["type"] == "missing":
        return f"{where}: is missing"
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return f"{where}: {message}, got {_short(fault['input'])}"


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


def _short(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = redacted(repr(value)) if "://" in repr(value) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
