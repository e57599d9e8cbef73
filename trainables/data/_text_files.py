"""Labelled texts as they lie on disk: JSON lines, a table, or a file for each."""

import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainables.common.errors import InputError
from trainables.data._files import Listing, labels_of, read_classes, read_content
from trainables.data._inputs import check_classes
from trainables.data._labels import plain_labels
from trainables.data._tables import TABLES, column_names, read_columns
from trainables.data._texts import LabelledTexts

Label = int | str
SHOWN = 40  # Characters of a wrong value in a message.


def read_files(listing: Listing) -> LabelledTexts:
    """Return the texts of files."""
    texts = [_text(read_content(path), str(path)) for path, _ in listing]
    return LabelledTexts.of(texts, labels_of(listing))


def _text(content: bytes, place: str) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise InputError(f"{place} is no UTF-8 text ({where}); store it as UTF-8") from error
    if not text.strip():
        raise InputError(f"{place} is empty; remove it, or put its text there")
    return text


def read_lines(path: Path) -> tuple[list[str], list[Label]]:
    """Return texts and labels of JSON lines, unpacked if the name ends in ``.xz``."""
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as stream:
            rows = [_row(line, f"{path}, line {number}") for number, line in enumerate(stream, 1)]
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not rows:
        raise InputError(f"{path} is empty; needed is a line for each text")
    return [text for text, _ in rows], [label for _, label in rows]


def read_table(path: Path, columns: tuple[str, str]) -> tuple[list[str], list[Label]]:
    """Return texts and labels of a table, from the columns so named."""
    there = column_names(path)
    for key, name in zip(("text", "label"), columns, strict=True):
        if name not in there:
            raise InputError(
                f"{path}: has no column {name!r}; its columns are {', '.join(map(repr, there))}; "
                f"name one by inputs: {{{key}: COLUMN}}"
            )
    found = read_columns(path, columns)
    texts = found[columns[0]].tolist()
    if not texts:
        raise InputError(f"{path} is empty; needed is a row for each text")
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{path}: {columns[0]}={_short(text)} in row {row} is no text")
    labels = plain_labels(found[columns[1]], columns[1], path)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise InputError(
            f"{path}: column {columns[1]!r} is {labels.dtype} {labels.shape}; needed are numbers "
            "or names of classes, one a row"
        )
    return texts, labels.tolist()


def _row(line: bytes, place: str) -> tuple[str, Label]:
    content = _text(line, place)
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is no JSON: {error}") from error
    text, label = (fields.get(k) for k in ("text", "label")) if isinstance(fields, dict) else "  "
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{place}: text={_short(text)} is no text; needed are `text` and `label`")
    if not isinstance(label, Label) or isinstance(label, bool) or not str(label).strip():
        raise InputError(f"{place}: label={_short(label)} is neither a class's number nor its name")
    return text, label


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def find_classes(path: Path, labels: Sequence[Label], source: Path) -> tuple[str, ...]:
    """Return the classes that the file ``path`` names if it is there, or else the labels do."""
    if path.exists():
        return read_classes(path)
    try:
        classes = _told(labels)
        check_classes(classes)
    except ValueError as error:
        raise InputError(f"{source}: {error}") from error
    return classes


def _told(labels: Sequence[Label]) -> tuple[str, ...]:
    numbers = {label for label in labels if isinstance(label, int)}
    names = {label for label in labels if isinstance(label, str)}
    if numbers and names:
        raise ValueError("labels are numbers and names; without classes.json, allowed is one form")
    if numbers != set(range(len(numbers))):
        raise ValueError(
            "labels leave numbers out; without classes.json, they must be 0, 1, ... with none "
            "left out"
        )
    return tuple(sorted(names) or map(str, sorted(numbers)))


def number_labels(labels: Sequence[Label], classes: tuple[str, ...], path: Path) -> np.ndarray:
    """Return labels as numbers of classes (N,), int64."""
    numbers = {name: number for number, name in enumerate(classes)}
    found = [numbers.get(label, -1) if isinstance(label, str) else label for label in labels]
    for line, number in enumerate(found, 1):
        if not 0 <= number < len(classes):
            place = f"row {line - 1}" if path.suffix in TABLES else f"line {line}"
            raise InputError(
                f"{path}, {place}: label={_short(labels[line - 1])} is no class; allowed is 0 "
                f"to {len(classes) - 1} or a name such as {classes[0]!r}"
            )
    return np.array(found, np.int64)
