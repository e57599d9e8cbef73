from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainables.common.archives import ArrayHeader
from trainables.common.errors import InputError
from trainables.data._image_arrays import ImageArrays
from trainables.data._images import check_images, images_info
from trainables.data._inputs import DatasetInfo, check_classes
from trainables.data._labels import note, number_names, plain_labels, sorted_names
from trainables.data._rows import RowArrays, check_labels
from trainables.data._source import SOURCES, Outline, OutlinedReader, PathReader

PARTS = ("train", "test")
MOST_SHOWN = 8  # Names of arrays in a line.
KEYS = ("x_train", "y_train", "x_test", "y_test")
Checked = tuple[dict[str, np.ndarray], tuple[str, ...], tuple[int, ...]]


@SOURCES.register("npz")
class NpzReader(PathReader, OutlinedReader):
    """``npz:PATH``: arrays ``x_train, y_train, x_test, y_test`` and, if wanted, ``classes``.

    Images are uint8, (N, H, W) or (N, H, W, C), or what ``ImageArrays`` makes of others; labels are
    integers from 0, (N,) or (N, 1), or one-hot, whole floats or names. ``classes`` (K,) are names,
    by default sorted. Without a test part the split's ``test`` is held out. Pickled objects are
    never loaded. Mean and standard deviation are those of the training images. A relative path
    starts at the working directory.
    """

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        """Return the arrays of the archive, checked."""
        archive = self._archive()
        labels, classes, row = self._checked(archive)
        parts = [
            RowArrays(np.ascontiguousarray(archive.read(f"x_{part}").reshape(-1, *row)), its)
            for part, its in labels.items()
        ]
        test = parts[1] if len(parts) > 1 else None
        rule = "test is x_test; validation is a stratified draw from x_train" if parts[1:] else ""
        return images_info(self.name, self.path, classes, parts[0], rule), parts[0], test

    def outline(self) -> Outline:
        """Return class names and labels, after checking everything but the pixels."""
        labels, classes, _ = self._checked(self._archive())
        return classes, labels["train"], labels.get("test")

    def instruction(self) -> str:
        return f"give the path of an .npz file with {', '.join(KEYS)}"

    def files(self) -> list[Path]:
        return [self.path]

    def test_paths(self) -> list[Path]:
        return [self.path]

    def _archive(self) -> ImageArrays:
        if not self.path.is_file():
            raise InputError(f"{self.path} does not exist (dataset {self.name!r})")
        archive = ImageArrays(self.path)
        for key in KEYS if {"x_test", "y_test"} & {*archive.names} else KEYS[:2]:
            if key not in archive.names:
                raise InputError(
                    f"{self.path}: key {key!r} is missing, needed: {', '.join(KEYS)}; it has: "
                    f"{_first(archive.names)}"
                )
        if unused := [name for name in archive.names if name not in (*KEYS, "classes")]:
            note(self.path, f"not used: {_first(unused)}; validation is drawn from x_train")
        return archive

    def _checked(self, archive: ImageArrays) -> Checked:
        """Return labels by part, class names and the shape of an image; all but pixels checked."""
        try:
            parts = [part for part in PARTS if f"x_{part}" in archive.names]
            rows = [_image_shape(archive, part) for part in parts]
            if rows[0] != rows[-1]:
                raise ValueError(
                    f"x_test has images of shape {rows[1]}, x_train of {rows[0]}; they must be the "
                    "same"
                )
            given = {part: _labels(archive, part) for part in parts}
            classes = _classes(archive, given["train"])
            labels = {
                part: its
                if its.dtype.kind == "i"
                else number_names(its, classes, f"y_{part}", archive.path)
                for part, its in given.items()
            }
            _check_label_sets(labels, classes)
        except InputError:  # Of the archive, which it names.
            raise
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
        return labels, classes, rows[0]


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_SHOWN]) + (", ..." if names[MOST_SHOWN:] else "")


def _image_shape(archive: ImageArrays, part: str) -> tuple[int, ...]:
    header = archive.header(f"x_{part}")
    if header.ndim == 3:
        header = ArrayHeader(header.dtype, (*header.shape, 1))
    check_images(f"x_{part}", header)
    return header.shape[1:]


def _labels(archive: ImageArrays, part: str) -> np.ndarray:
    """Return labels, numbers (int64) or names (N,), one an image."""
    name, images = f"y_{part}", archive.header(f"x_{part}")
    labels = plain_labels(archive.read(name), name, archive.path)
    if labels.dtype.kind != "U" or labels.ndim != 1:
        check_labels(name, labels)
        labels = labels.astype(np.int64)
    if images.shape[0] != len(labels):
        raise ValueError(f"x_{part} has {images.shape[0]} images but {name} {len(labels)} labels")
    return labels


def _classes(archive: ImageArrays, train: np.ndarray) -> tuple[str, ...]:
    if "classes" in archive.names:
        header = archive.header("classes")
        if header.dtype.kind != "U" or header.ndim != 1:
            raise ValueError(f"classes is {header.dtype} {header.shape}, allowed are strings (K,)")
        names = tuple(archive.read("classes").tolist())
    elif train.dtype.kind == "U":
        names = sorted_names(train)
    else:
        names = _numbered(train)
    check_classes(names)
    return names


def _numbered(train: np.ndarray) -> tuple[str, ...]:
    """Return the names ``0``, ``1`` ... up to the largest of the labels ``train`` (N,)."""
    present = np.unique(train)
    gap = np.flatnonzero(present != np.arange(len(present)))
    if len(gap):  # Then they are codes, not class indices.
        raise ValueError(
            f"y_train holds {present[gap[0]]} but no {gap[0]}; without the key 'classes', labels "
            "must be 0, 1, ... with none left out; renumber all of them: y = np.unique(y, "
            "return_inverse=True)[1]"
        )
    return tuple(map(str, range(len(present))))


def _check_label_sets(labels: dict[str, np.ndarray], classes: tuple[str, ...]) -> None:
    """Refuse labels that name no class, and test data of a class that training lacks."""
    found = {part: set(np.unique(its).tolist()) for part, its in labels.items()}
    for part, present in found.items():
        strange = present - set(range(len(classes)))
        if strange:
            raise ValueError(f"y_{part} holds {min(strange)}, allowed is 0 to {len(classes) - 1}")
    unseen = sorted(found.get("test", set()) - found["train"])
    if unseen:
        raise ValueError(f"test has class {classes[unseen[0]]!r} ({unseen[0]}), which train lacks")
