"""Cached features of another network as the rows of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from trainables.common.archives import ArrayArchive
from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch
from trainables.data._class_embeddings import (
    EMBEDDINGS,
    class_weights,
    embedded_classes,
    pack,
    unpack,
)
from trainables.data._feature_arrays import FeatureTable, feature_files, known_names
from trainables.data._inputs import DatasetInfo, Inputs, InputShape
from trainables.data._logit_arrays import NamedArrays
from trainables.data._rows import BLOCK_BYTES, OWN, Rows
from trainables.data._source import SOURCES, Outline, OutlinedReader, PathReader
from trainables.data._tables import TABLES
from trainables.data.npz import first_names, match_labels, named_classes, read_labels

PARTS = ("train", "validation", "test")
ENDINGS = (".npz", ".npy", *TABLES)


@dataclass(frozen=True)
class FeatureShape(InputShape):
    """The width and the statistics of features, from which a network is built.

    Attributes:
        width: D, the number of features.
        mean: Mean of each feature over training rows; empty to leave features as they are.
        std: Standard deviation of each feature; 1 for a constant feature.
        classes: Weights of a zero-shot classifier, packed; empty without class embeddings.
    """

    kind: ClassVar[str] = "features"

    width: int
    mean: tuple[float, ...] = field(default=(), repr=False)
    std: tuple[float, ...] = field(default=(), repr=False)
    classes: str = field(default="", repr=False)

    def blank(self, device: torch.device) -> Tensor:
        return torch.zeros(1, self.width, device=device)

    def class_weights(self, model: str) -> np.ndarray:
        """Return a model's initial weights: the scaled unit embedding of each class, (K, D)."""
        if not self.classes:
            raise InputError(
                f"model {model!r} starts from class embeddings; add an array class_embeddings "
                "(K, D) to the features, or use linear"
            )
        return unpack(self.classes, self.width)


@dataclass(frozen=True)
class Features(Inputs, kind="features"):
    """Features (N, D), stored as float32; see ``FeatureShape`` for the attributes.

    ``class_weights`` is the attribute ``classes`` of ``FeatureShape``.
    """

    dtype: ClassVar[np.dtype] = np.dtype(np.float32)
    seen_as = FeatureShape
    views = ("none",)

    width: int
    mean: tuple[float, ...] = field(default=(), repr=False)
    std: tuple[float, ...] = field(default=(), repr=False)
    augmentation: str = "none"
    class_weights: str = field(default="", repr=False)

    @property
    def row(self) -> tuple[int]:
        return (self.width,)

    @property
    def shape(self) -> FeatureShape:
        return FeatureShape(self.width, self.mean, self.std, self.class_weights)

    def to_dict(self) -> dict[str, Any]:
        fields = super().to_dict()
        if not self.class_weights:  # So that keys of stored data from before this field match.
            del fields["class_weights"]
        return fields

    def fitted(self, train: Rows) -> Self:
        """Return the inputs with mean and standard deviation of each feature of ``train``."""
        mean, squares, count = np.zeros(self.width), np.zeros(self.width), 0
        for block in train.blocks():
            centre, count = block.mean(0, dtype=np.float64), count + len(block)
            step = centre - mean
            mean += step * (len(block) / count)
            squares += ((block - centre) ** 2).sum(0) + step * (centre - mean) * len(block)
        std = np.sqrt(squares / count)
        std[std == 0] = 1
        return replace(self, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


@dataclass(frozen=True, eq=False)
class FeatureRows(Rows):
    """Rows of arrays that may be memory-mapped; values are read when they are needed.

    Attributes:
        pieces: Arrays (M, D) of real numbers.
        labels: (N,), int64.
        numbers: The number of each row in the concatenated pieces, (N,).
        validation: See ``Rows``.
    """

    pieces: tuple[np.ndarray, ...]
    labels: np.ndarray
    numbers: np.ndarray
    validation: np.ndarray | None = None

    @property
    def dtype(self) -> np.dtype:
        return Features.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pieces[0].shape[1:]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.labels, *self.pieces)

    def take(self, indices: np.ndarray) -> Self:
        labels, numbers = self.labels[indices], self.numbers[indices]
        return replace(self, labels=labels, numbers=numbers, validation=None)

    def read(self, start: int, stop: int) -> np.ndarray:
        numbers = self.numbers[start:stop]
        found, first = np.empty((len(numbers), *self.shape), self.dtype), 0
        for piece in self.pieces:
            own = (numbers >= first) & (numbers < first + len(piece))
            with np.errstate(over="ignore"):  # ``FeaturesReader._values`` refuses such values.
                found[own] = piece[numbers[own] - first]
            first += len(piece)
        return found

    def content(self) -> Iterator[bytes | memoryview]:
        yield f"{self.shape}{len(self)}".encode()
        yield np.ascontiguousarray(self.labels).data
        yield from self.own_list()
        for block in self.blocks():
            yield block.data


@SOURCES.register("features")
class FeaturesReader(PathReader, OutlinedReader):
    """``features:PATH``: features (N, D) and labels; see ``_feature_arrays`` for the formats.

    Arrays are ``features`` and ``labels``, or ``features_train``, ``labels_train`` and the same for
    ``test`` and ``validation``; without test rows the split holds some out. A zero-shot classifier
    is ``class_embeddings`` (K, D) and ``logit_scale``.
    """

    kind = Features
    noun = "rows"
    validation = OWN
    edition = 1  # Since 1, the fingerprint contains the validation part.

    def read(self, download: bool) -> tuple[DatasetInfo, FeatureRows, FeatureRows | None]:
        labels, classes = self._checked
        values = {part: self._values(part) for part in labels}
        own = self.own_validation()
        pieces = tuple(values[part] for part in labels if part != "test")
        known = np.concatenate([labels[part] for part in labels if part != "test"])
        train = FeatureRows(pieces, known, np.arange(len(known)), own)
        test = None
        if "test" in labels:
            test = FeatureRows((values["test"],), labels["test"], np.arange(len(labels["test"])))
        weights = class_weights(self._arrays, self._names, train.shape[0], len(classes))
        rule = "" if test is None else "test is the part named so; "
        held = "a stratified draw" if own is None else "the part named so"
        info = DatasetInfo(
            name=self.name,
            classes=classes,
            inputs=Features(train.shape[0], class_weights=pack(weights)),
            split_rule=f"{rule}validation is {held}",
            source=str(self.path),
        )
        return info, train, test

    def outline(self) -> Outline:
        labels, classes = self._checked
        known = [each for part, each in labels.items() if part != "test"]
        return classes, np.concatenate(known), labels.get("test")

    def own_validation(self) -> np.ndarray | None:
        labels, _ = self._checked
        if "validation" not in labels:
            return None
        start = len(labels["train"])
        return np.arange(start, start + len(labels["validation"]))

    def instruction(self) -> str:
        return "use the path of a file of features and labels, or of a folder of .npy files"

    def files(self) -> list[Path]:
        if self.path.is_dir() or (self.path.suffix == ".npy" and self.path.is_file()):
            return feature_files(self.path).files
        return [self.path]

    def test_paths(self) -> list[Path]:
        return self.files()

    @cached_property
    def _arrays(self) -> NamedArrays:
        path = self.path
        if not path.exists():
            raise InputError(f"{path} does not exist (dataset {self.name!r})")
        if path.is_dir() or path.suffix == ".npy":
            return feature_files(path)
        if path.suffix == ".npz":
            return ArrayArchive(path)
        if path.suffix in TABLES:
            return FeatureTable(path)
        raise InputError(f"{path}: expected an ending of {', '.join(ENDINGS)}, got {path.suffix!r}")

    @cached_property
    def _names(self) -> dict[str, str]:
        """Return ``known_names``, after checking that each part has features and labels."""
        names = known_names(self._arrays)
        parts = [part for part in PARTS if {f"features_{part}", f"labels_{part}"} & names.keys()]
        needed = [f"{kind}_{part}" for part in ("train", *parts) for kind in ("features", "labels")]
        missing = next((name for name in needed if name not in names), None)
        if missing is not None:
            known = first_names(self._arrays.names)
            missing = missing if len(parts) > 1 else missing.removesuffix("_train")
            raise InputError(f"{self.path}: no array {missing!r}; arrays are {known}")
        return names

    @cached_property
    def _checked(self) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return labels by part, and the names of classes; check all but the values of features."""
        names = self._names
        parts = [part for part in PARTS if f"features_{part}" in names]
        try:
            classes = named_classes(self._arrays, names.get("classes"))
            labels = {part: self._labels(part, classes) for part in parts}
            where = {part: names[f"labels_{part}"] for part in parts}
            classes = classes or embedded_classes(self._arrays, names, labels)
            return match_labels(self.path, labels, classes, where, EMBEDDINGS in names)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error

    def _labels(self, part: str, classes: tuple[str, ...]) -> np.ndarray:
        """Return a part's labels; check the number of its rows, and its width against ``train``."""
        first, name, label = (
            self._names[key] for key in ("features_train", f"features_{part}", f"labels_{part}")
        )
        (count, width), (_, expected) = self._shape(name), self._shape(first)
        if width != expected:
            raise ValueError(f"{name} has {width} features, {first} has {expected}")
        labels = read_labels(self._arrays, label, classes)
        if len(labels) != count:
            raise ValueError(f"{name} has {count} rows but {label} has {len(labels)} labels")
        return labels

    def _shape(self, name: str) -> tuple[int, ...]:
        arrays = self._arrays
        header = arrays.header(name) if isinstance(arrays, ArrayArchive) else arrays.read(name)
        if header.dtype.kind not in "fiu" or header.ndim != 2 or not min(header.shape):
            got = f"got {header.dtype} {header.shape}"
            raise ValueError(f"{name}: expected numbers (N, D), one row per label, {got}")
        return header.shape

    def _values(self, part: str) -> np.ndarray:
        """Return the features of a part; refuse values that are not finite as float32."""
        name = self._names[f"features_{part}"]
        values = self._arrays.read(name)
        step = max(1, BLOCK_BYTES // (values.shape[1] * Features.dtype.itemsize))
        for start in range(0, len(values), step):
            with np.errstate(over="ignore"):
                wrong = ~np.isfinite(values[start : start + step].astype(Features.dtype))
            if wrong.any():
                row, column = (int(each[0]) for each in wrong.nonzero())
                value = values[start + row, column]
                raise InputError(
                    f"{self.path}: {name}: expected finite numbers in the range of float32, got "
                    f"{value} in row {start + row}, column {column}"
                )
        return values
