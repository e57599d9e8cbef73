"""Reads users' YAML; refuses duplicate keys, and reads ``on``, ``010`` or ``1:30`` as texts."""

import math
import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from trainables.common.errors import InputError
from trainables.common.paths import redacted

LARGEST_DOCUMENT = 2**20  # Characters of all values, including repetitions by aliases.
DEEPEST = 32
LONGEST_NUMBER = 100  # Maximum number of characters of a number.
TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
# Texts that PyYAML reads as other values, as in YAML 1.1: `on` is true, 010 is 8, 1:30 is 90.
YAML_1_1 = re.compile(r"(?i:yes|no|on|off)|[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*[:-].*")
FLOAT, EXPONENT = "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")


def decoded(content: bytes, where: str) -> str:
    """Return the text of a file; raise ``InputError`` if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        place = f"byte {content[error.start]:#04x} in line {line}"
        raise InputError(f"{where}: is not UTF-8 ({place}); save it as UTF-8") from error


def read_mapping(text: str, where: str, what: str, needs: str) -> dict[str, Any]:
    """Read a YAML document, or raise ``InputError`` if it is not a mapping or is invalid.

    In messages, ``where`` is the file, ``what`` the document, and ``needs`` its required content.
    """
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {_yaml_complaint(error)}") from error
    except (OverflowError, ValueError) as error:
        # PyYAML does not check numbers in escapes and directives.
        raise InputError(f"{where}: cannot be read as YAML: {error}") from error
    if document is None:
        raise InputError(f"{where}: the document is empty; {what} needs {needs}")
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise InputError(f"{where}: {what} must be a mapping of keys, got a {kind}")
    return document


def short(value: Any) -> str:
    """Return a value for a message: at most 80 characters, an address without its secrets."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = redacted(repr(value)) if "://" in repr(value) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses duplicate keys, and very deep, large and recursive documents."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._size = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Build a node; limit its depth, and the document's size with repetitions by aliases."""
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
            raise _refused(f"alias {short(event.anchor)} is inside its own value", event)
        if self._size > LARGEST_DOCUMENT:
            limit = f"more than {LARGEST_DOCUMENT:,} characters"
            raise _refused(f"the values, including repetitions by aliases, are {limit}", event)
        return node

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        """Return a node's tag; unquoted values that match ``YAML_1_1`` are texts."""
        surprises = kind is yaml.ScalarNode and implicit[0] and YAML_1_1.fullmatch(str(value))
        return TEXT if surprises else super().resolve(kind, value, implicit)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping after checking that its keys are valid and unique."""
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == MERGE:
                raise _refused("merge keys (<<) are not supported; repeat the keys", key_node)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refused(f"a {type(key).__name__} cannot be a key", key_node)
            if key in seen:
                raise _refused(f"key {short(key)} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value; raise a YAML error if its text does not fit its type."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise _refused(f"{short(node.value)} is not a valid {kind}", node) from error

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return a scalar's text; refuse halves of surrogate pairs and very long numbers."""
        text = super().construct_scalar(node)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise _refused(
                f"{short(text)} has half a surrogate pair; write the character itself", node
            )
        if node.tag != TEXT and len(text) > LONGEST_NUMBER:
            kind = node.tag.rpartition(":")[2]
            raise _refused(
                f"expected {kind} of at most {LONGEST_NUMBER} characters, got {len(text)}: "
                f"{short(text)}; put text into quotes",
                node,
            )
        return text


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes texts which ``_Loader`` would read as numbers."""


for _each in (_Loader, _Dumper):  # In YAML 1.1, 1e-3 is text.
    _each.add_implicit_resolver(FLOAT, EXPONENT, [*"+-0123456789"])


def write_mapping(document: Mapping[str, Any]) -> str:
    """Return a document as text for ``read_mapping``."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


def _refused(problem: str, place: Any) -> yaml.MarkedYAMLError:
    """Return an error with the line of a node or an event."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _yaml_complaint(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "'\\t'" in problem:
        problem = "a tab is used where YAML allows only spaces"
    return f"line {mark.line + 1}: {problem}" if mark else problem
