import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError
from trainables.common.files import file_hash
from trainables.common.paths import local_path
from trainables.data._class_numbers import Label, LabelPart, number_labels
from trainables.data._files import Listed, Listing, labels_of, read_classes, read_content
from trainables.data._inputs import DatasetInfo, Inputs, check_classes
from trainables.data._labels import note_unused, plain_labels, plain_values
from trainables.data._rows import MAX_LABEL
from trainables.data._source import SOURCES, Outline, OutlinedReader, PathReader
from trainables.data._tables import TABLES, column_names, read_columns
from trainables.data._texts import LabelledTexts, Texts
from trainables.data.folder import PARTS, is_parted, list_folders

ENDINGS = (".jsonl", ".jsonl.xz", *TABLES)
CLASSES = "classes.json"
NUMBERS = ("vocabulary", "length")
COLUMNS = ("text", "label")
LAYOUT = (
    "use JSON lines with `text` and `label` (.jsonl, .jsonl.xz), or a .csv, .tsv or .parquet, or "
    "two of these, PATH/train and PATH/test, or one UTF-8 file per text, PATH/<class>/<file>"
)
SHOWN = 40  # Maximum number of characters of a wrong value in a message.


class TextsReader(OutlinedReader):
    """A data set of texts in JSON lines, in a table or in one file per text."""

    kind: type[Inputs] = Texts
    noun = "texts"
    accepts: tuple[str, ...] = (*NUMBERS, "embeddings", *COLUMNS)
    inputs = Texts()
    vectors: Path | None = None
    columns = COLUMNS

    def adjust(self, settings: Mapping[str, Any]) -> None:
        """Accept vocabulary, length, a file of words' vectors, and names of columns."""
        super().adjust(settings)
        where = f"dataset {self.name!r}: inputs."
        if "embeddings" in settings:
            self.vectors = local_path(settings["embeddings"], f"{where}embeddings")
            if not self.vectors.is_file():
                raise InputError(
                    f"{where}embeddings: {self.vectors} does not exist; put a file with one word "
                    "and its vector per line there, such as GloVe, or remove `embeddings` to learn "
                    "them"
                )
        text, label = (settings.get(key, key) for key in COLUMNS)
        for key, name in zip(COLUMNS, (text, label), strict=True):
            if not isinstance(name, str):
                raise InputError(f"{where}{key}: expected the name of a column, got {name!r}")
        self.columns = (text, label)
        try:
            self.inputs = Texts(**{key: settings[key] for key in NUMBERS if key in settings})
        except ValueError as error:
            raise InputError(f"{where}{error}") from error

    def used(self, text: str) -> str:
        """Return the part of a text that networks see, by default all of it."""
        return text

    def read(self, download: bool) -> tuple[DatasetInfo, LabelledTexts, LabelledTexts | None]:
        """Return all texts; their vocabulary is fitted later, to training texts only."""
        classes, train, test = self._parts()
        split_rule = "no test texts: test and validation are stratified draws"
        if test is not None:
            split_rule = "test is the part named so; validation is a stratified draw from train"
        inputs = self.inputs
        if self.vectors is not None:
            inputs = replace(inputs, embeddings=file_hash(self.vectors))
            train = replace(train, vectors=self.vectors)
        return DatasetInfo(self.name, classes, inputs, split_rule, self.source), train, test

    @property
    def source(self) -> str:
        """Human-readable origin of the texts."""
        return str(self.path)

    def outline(self) -> Outline:
        classes, train, test = self._parts()
        return classes, train.labels, None if test is None else test.labels

    def files(self) -> list[Path]:
        vectors, lines = [self.vectors] if self.vectors else [], self._lines()
        if lines:
            return [*lines, self._class_file(), *vectors]
        try:
            _, train, test = self._folders()
        except InputError:
            return vectors
        return [path for path, _ in (*train, *(test or ()))] + vectors

    def test_paths(self) -> list[Path]:
        """Return the files or the folder named ``test``, or else all files."""
        lines = self._lines()
        if lines:
            return lines[1:] or lines
        return [self.path / "test"] if is_parted(self.path) else [self.path]

    def instruction(self) -> str:
        return LAYOUT

    def _parts(self) -> tuple[tuple[str, ...], LabelledTexts, LabelledTexts | None]:
        lines = self._lines()
        if not lines:
            classes, train, test = self._folders()
            return classes, read_files(train), None if test is None else read_files(test)
        note_unused(self.path)
        texts, labels = zip(*map(self._labelled, lines), strict=True)
        classes = find_classes(self._class_file(), labels[0], lines[0])
        numbers = number_labels([*map(_label_part, lines, labels)], classes)
        parts = [
            LabelledTexts.of([*map(self.used, part)], each)
            for part, each in zip(texts, numbers, strict=True)
        ]
        absent = np.flatnonzero(np.bincount(parts[0].labels, minlength=len(classes)) == 0)
        if len(absent):
            raise InputError(f"{lines[0]}: class {classes[absent[0]]!r} has no training text")
        return classes, parts[0], parts[1] if len(parts) > 1 else None

    def _labelled(self, path: Path) -> tuple[list[str], list[int | str]]:
        return read_table(path, self.columns) if path.suffix in TABLES else read_lines(path)

    def _lines(self) -> list[Path]:
        """Return the files of lines or rows, training texts first; empty if there are none."""
        if self.path.name.endswith(ENDINGS):
            return [self.path]
        found = {
            part: path
            for part in PARTS
            for ending in ENDINGS
            if (path := self.path / f"{part}{ending}").is_file()
        }
        return list(found.values()) if "train" in found else []

    def _class_file(self) -> Path:
        return (self.path if self.path.is_dir() else self.path.parent) / CLASSES

    def _folders(self) -> Listed:
        return list_folders(self.path, LAYOUT, _is_text, "text")


@SOURCES.register("text")
class TextReader(PathReader, TextsReader):
    """``text:PATH``: rows with ``text`` and ``label``, or folders of files; docs/data.md."""

    edition = 1  # Since 1, labels may be names of classes.


def _is_text(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def read_files(listing: Listing) -> LabelledTexts:
    """Return the texts in files, with the files' labels."""
    texts = [_text(read_content(path), str(path)) for path, _ in listing]
    return LabelledTexts.of(texts, labels_of(listing))


def _text(content: bytes, place: str) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise InputError(f"{place} is not UTF-8 ({where}); save it as UTF-8") from error
    if not text.strip():
        raise InputError(f"{place} is empty; add its text, or remove it")
    return text


def read_lines(path: Path) -> tuple[list[str], list[Label]]:
    """Return texts and labels of JSON lines, which may be compressed (``.xz``)."""
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as stream:
            rows = [_row(line, f"{path}, line {number}") for number, line in enumerate(stream, 1)]
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not rows:
        raise InputError(f"{path} is empty; expected one line per text")
    return [text for text, _ in rows], plain_values([label for _, label in rows], "label", path)


def read_table(path: Path, columns: tuple[str, str]) -> tuple[list[str], list[Label]]:
    """Return texts and labels of a table; ``columns`` are the names of their columns."""
    names = column_names(path)
    for key, name in zip(("text", "label"), columns, strict=True):
        if name not in names:
            raise InputError(
                f"{path}: no column {name!r}; use inputs: {{{key}: COLUMN}}; columns are "
                f"{', '.join(map(repr, names))}"
            )
    found = read_columns(path, columns)
    texts = found[columns[0]].tolist()
    if not texts:
        raise InputError(f"{path} is empty; expected one row per text")
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"{path}: column {columns[0]!r}: expected a text in row {row}, got {_short(text)}"
            )
    labels = plain_labels(found[columns[1]], columns[1], path)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise InputError(
            f"{path}: column {columns[1]!r}: expected one number or name of a class per row, got "
            f"{labels.dtype} {labels.shape}"
        )
    return texts, labels.tolist()


def _row(line: bytes, place: str) -> tuple[str, float | str]:
    content = _text(line, place).removeprefix("\ufeff")  # The byte order mark of some editors.
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not JSON: {error}") from error
    text, label = (fields.get(k) for k in ("text", "label")) if isinstance(fields, dict) else "  "
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"{place}: `text` must be a non-empty string, got {_short(text)}; each line needs the "
            "keys `text` and `label`"
        )
    if (
        not isinstance(label, int | float | str)
        or isinstance(label, bool)
        or not str(label).strip()
        or (isinstance(label, float) and not (label.is_integer() and abs(label) <= MAX_LABEL))
    ):
        raise InputError(
            f"{place}: `label` must be the number or the name of a class, got {_short(label)}"
        )
    return text, label


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def find_classes(path: Path, labels: Sequence[Label], source: Path) -> tuple[str, ...]:
    """Return the classes named in the file ``path``, or those of the labels if it is missing."""
    if path.exists():
        return read_classes(path)
    try:
        classes = _classes_of(labels)
        check_classes(classes)
    except ValueError as error:
        raise InputError(f"{source}: {error}") from error
    return classes


def _classes_of(labels: Sequence[Label]) -> tuple[str, ...]:
    numbers = {label for label in labels if isinstance(label, int)}
    names = {label for label in labels if isinstance(label, str)}
    if numbers and names:
        raise ValueError("labels are numbers and names; use one form, or add a classes.json")
    if numbers != set(range(len(numbers))):
        raise ValueError(
            "labels have gaps; without classes.json, they must be 0, 1, ... without gaps"
        )
    return tuple(sorted(names) or map(str, sorted(numbers)))


def _label_part(path: Path, labels: Sequence[Label]) -> LabelPart:
    rows = ("row", 0) if path.suffix in TABLES else ("line", 1)
    return LabelPart(labels, f"{path}: label", *rows)
