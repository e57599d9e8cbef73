"""Finds the Parquet files of each split in a data set repository, and reads their columns.

The rules are those of https://huggingface.co/docs/hub/datasets-data-files-configuration: the
``configs`` in the header of README.md, or else the names of files and folders.
"""

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from trainables.common.errors import InputError

ENDING = ".parquet"
CONVERTED = "refs/convert/parquet"  # The Hub's own copy of other formats, at CONFIG/SPLIT/FILE.
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT = re.compile(
    rf"(?:^|[-_./])(?:partial-)?({'|'.join(word for words in _WORDS.values() for word in words)})"
    r"(?=[-_./\d]|$)"
)
Splits = dict[str, list[str]]


class Column(NamedTuple):
    """A column: its type, such as ``Image`` (see ``_column``), and the names of its classes."""

    kind: str
    classes: tuple[str, ...] = ()


class EmbeddedImage(BytesIO):
    """An image in a cell of a table; ``str()`` returns its file, column and row, for messages."""

    def __init__(self, content: bytes, place: str) -> None:
        super().__init__(content)
        self._place = place

    def __str__(self) -> str:
        return self._place


def find_splits(files: Sequence[str], card: Mapping[str, Any], config: str) -> Splits:
    """Return the Parquet files of each split of a configuration; empty if there are none.

    ``config`` is the configuration's name; "" is the default one, or the only one.

    Raises:
        InputError: If the configuration does not exist, or "" could mean several ones.
    """
    tables = sorted(name for name in files if name.endswith(ENDING))
    configs = _declared(card, tables) or _by_name(tables)
    if not configs:
        return {}
    known = ", ".join(configs)
    if config:
        if config not in configs:
            raise InputError(f"has no configuration {config!r}; configurations are {known}")
        return configs[config]
    default = next((name for name in ("", "default") if name in configs), None)
    if default is None and len(configs) > 1:
        raise InputError(f"has several configurations; add one after a colon: {known}")
    return configs[default] if default is not None else next(iter(configs.values()))


def _declared(card: Mapping[str, Any], tables: Sequence[str]) -> dict[str, Splits]:
    """Return the configurations in README.md's header; one marked ``default`` is also named ""."""
    found: dict[str, Splits] = {}
    for entry in card.get("configs") or ():
        patterns = entry.get("data_files", f"{entry.get('data_dir', '')}*")
        if not isinstance(patterns, list) or not all(isinstance(each, dict) for each in patterns):
            splits = _split_by_name(_matching(tables, patterns))
        else:
            splits = {each["split"]: _matching(tables, each["path"]) for each in patterns}
        splits = {name: paths for name, paths in splits.items() if paths}
        if splits:
            found |= {str(entry.get("config_name", "default")): splits}
            found |= {"": splits} if entry.get("default") else {}
    return found


def _matching(tables: Sequence[str], patterns: str | Sequence[str]) -> list[str]:
    wanted = [patterns] if isinstance(patterns, str) else patterns
    return [name for name in tables if any(fnmatchcase(name, pattern) for pattern in wanted)]


def _by_name(tables: Sequence[str]) -> dict[str, Splits]:
    """Return the splits of each top folder, which is a configuration.

    Files outside folders, in ``data``, or in folders named after splits belong to the default
    configuration.
    """
    folders: dict[str, list[str]] = {}
    for name in tables:
        top, slash, _ = name.partition("/")
        own = slash and top != "data" and not _SPLIT.search(top)
        folders.setdefault(top if own else "default", []).append(name)
    return {folder: _split_by_name(names) for folder, names in folders.items()}


def _split_by_name(tables: Sequence[str]) -> Splits:
    """Return files by the split in their names; files without one are training data."""
    found: Splits = {}
    for name in tables:
        words = _SPLIT.search(name.removesuffix(ENDING))
        split = next(key for key, known in _WORDS.items() if not words or words[1] in known)
        found.setdefault(split, []).append(name)
    return found


def read_features(path: Path) -> dict[str, Column]:
    """Return the columns of a Parquet file, by name."""
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        declared = metadata.get("info", {}).get("features", {})
        return {field.name: _column(field, declared.get(field.name)) for field in schema}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({error})") from error


def _column(field: Any, declared: Any) -> Column:
    """Return a column as declared (``Image`` or ``ClassLabel``), else by its Parquet type."""
    import pyarrow.types as types

    if isinstance(declared, dict) and declared.get("_type") in ("Image", "ClassLabel"):
        return Column(declared["_type"], tuple(declared.get("names") or ()))
    if types.is_struct(field.type) and {each.name for each in field.type} == {"bytes", "path"}:
        return Column("Image")
    if types.is_string(field.type) or types.is_large_string(field.type):
        return Column("string")
    return Column(str(field.type))


def read_cells(path: Path, name: str) -> list[Any]:
    """Return the values of a column as Python objects."""
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path, columns=[name]).column(name).to_pylist()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({error})") from error
