from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError
from trainables.common.files import file_hash
from trainables.common.paths import local_path
from trainables.data._files import Kept, Listed
from trainables.data._inputs import DatasetInfo
from trainables.data._labels import note_unused
from trainables.data._source import SOURCES, Outline, OutlinedReader, PathReader
from trainables.data._tables import TABLES
from trainables.data._text_files import (
    find_classes,
    number_labels,
    read_files,
    read_lines,
    read_table,
)
from trainables.data._texts import LabelledTexts, Texts
from trainables.data.folder import PARTS, is_parted, list_folders

TEXT_FILES = Kept("text", lambda path: path.is_file() and not path.name.startswith("."))
ENDINGS = (".jsonl", ".jsonl.xz", *TABLES)
CLASSES = "classes.json"
NUMBERS = ("vocabulary", "length")
COLUMNS = ("text", "label")
LAYOUT = (
    "give JSON lines with `text` and `label` (.jsonl, .jsonl.xz), or a .csv, .tsv or .parquet, or "
    "two of them, PATH/train and PATH/test, or a UTF-8 file a text, PATH/<class>/<file>"
)


class TextsReader(OutlinedReader):
    """A data set of texts, in JSON lines, in a table or in a file each."""

    kind = Texts
    noun = "texts"
    accepts = (*NUMBERS, "embeddings", *COLUMNS)
    inputs = Texts()
    vectors: Path | None = None
    columns = COLUMNS

    def adjust(self, settings: Mapping[str, Any]) -> None:
        """Take vocabulary, length of texts, a file of words' vectors, and names of columns."""
        super().adjust(settings)
        where = f"dataset {self.name!r}: inputs."
        if "embeddings" in settings:
            self.vectors = local_path(settings["embeddings"], f"{where}embeddings")
            if not self.vectors.is_file():
                raise InputError(f"{where}embeddings: {self.vectors} does not exist")
        text, label = (settings.get(key, key) for key in COLUMNS)
        for key, name in zip(COLUMNS, (text, label), strict=True):
            if not isinstance(name, str):
                raise InputError(f"{where}{key}={name!r} is not the name of a column")
        self.columns = (text, label)
        try:
            self.inputs = Texts(**{key: settings[key] for key in NUMBERS if key in settings})
        except ValueError as error:
            raise InputError(f"{where}{error}") from error

    def used(self, text: str) -> str:
        """Return the part of a text that networks are to see: all of it."""
        return text

    def read(self, download: bool) -> tuple[DatasetInfo, LabelledTexts, LabelledTexts | None]:
        """Return all texts; which words they are stored by is found from training texts alone."""
        classes, train, test = self._parts()
        split_rule = (
            "no test texts: test and validation are stratified draws"
            if test is None
            else "test is the part named so; validation is a stratified draw from train"
        )
        inputs = self.inputs
        if self.vectors is not None:
            inputs = replace(inputs, embeddings=file_hash(self.vectors))
            train = replace(train, vectors=self.vectors)
        return DatasetInfo(self.name, classes, inputs, split_rule, self.source), train, test

    @property
    def source(self) -> str:
        """Return where the texts come from, for people."""
        return str(self.path)

    def outline(self) -> Outline:
        """Return class names and labels, after reading every text."""
        classes, train, test = self._parts()
        return classes, train.labels, None if test is None else test.labels

    def files(self) -> list[Path]:
        """Return the files of lines and class names or those of the texts, and that of vectors."""
        vectors, lines = [self.vectors] if self.vectors else [], self._lines()
        if lines:
            return [*lines, self._class_file(), *vectors]
        try:
            _, train, test = self._folders()
        except InputError:
            return vectors
        return [path for path, _ in (*train, *(test or ()))] + vectors

    def test_paths(self) -> list[Path]:
        """Return the files named ``test``, or all: any text may be a test text."""
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
        parts = [
            LabelledTexts.of([*map(self.used, part)], number_labels(its, classes, path))
            for part, its, path in zip(texts, labels, lines, strict=True)
        ]
        _check_present(classes, parts[0], lines[0])
        return classes, parts[0], parts[1] if len(parts) > 1 else None

    def _labelled(self, path: Path) -> tuple[list[str], list[int | str]]:
        return read_table(path, self.columns) if path.suffix in TABLES else read_lines(path)

    def _lines(self) -> list[Path]:
        """Return the files of lines or rows that there are, that of the training texts first."""
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
        return list_folders(self.path, TEXT_FILES, LAYOUT)


@SOURCES.register("text")
class TextReader(PathReader, TextsReader):
    """``text:PATH``: rows with ``text`` and ``label``, or a folder of files for each class.

    ``PATH.jsonl`` (or ``.jsonl.xz``, ``.csv``, ``.tsv``, ``.parquet``, whose columns the settings
    ``text`` and ``label`` may name) is one set; the split's ``test`` rows are held out;
    ``PATH/train.jsonl`` with ``PATH/test.jsonl`` are a training and a test set. A label is the
    number of a class or its name; ``classes.json`` beside them, ``{"classes": [NAME, ...]}``, says
    the order of the numbers, which else is that of the sorted names. Folders are laid out as those
    of ``folder:PATH``; hidden files are passed over. Everything is UTF-8. All texts are held in
    memory at once while they are prepared. A relative path starts at the working directory.
    """


def _check_present(classes: tuple[str, ...], train: LabelledTexts, path: Path) -> None:
    """Refuse a class that has no training text."""
    absent = np.flatnonzero(np.bincount(train.labels, minlength=len(classes)) == 0)
    if len(absent):
        raise InputError(f"{path}: class {classes[absent[0]]!r} has no training text")
