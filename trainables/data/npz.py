from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainables.common.archives import ArrayArchive, ArrayHeader
from trainables.common.errors import InputError
from trainables.data._class_numbers import LabelPart, number_labels
from trainables.data._images import MAX_CHANNELS, check_images, images_info
from trainables.data._inputs import DatasetInfo, check_classes
from trainables.data._labels import note, plain_labels
from trainables.data._logit_arrays import NamedArrays
from trainables.data._rows import RowArrays, check_labels
from trainables.data._source import SOURCES, Outline, OutlinedReader, PathReader

PARTS = ("train", "test")
MOST_SHOWN = 8  # Maximum number of array names in a message.
KEYS = ("x_train", "y_train", "x_test", "y_test")
WORDS = {
    **dict.fromkeys(("x", "images", "image", "data"), "x"),
    **dict.fromkeys(("y", "labels", "label", "targets", "target"), "y"),
}
BRIGHTEST = 255
Checked = tuple[dict[str, np.ndarray], tuple[str, ...], tuple[int, ...]]


class ImageArrays:
    """The arrays of an archive under the names ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    Names such as ``X_train`` and ``train_images`` are recognised; ``X`` and ``y`` are training
    rows. Images of floats in [0, 1], of whole numbers from 0 to 255 in another type, and with
    channels first are converted to uint8 (N, H, W, C), with a ``DataNote``.
    """

    def __init__(self, path: Path) -> None:
        self._archive = ArrayArchive(path)
        self.path = path
        self._given: dict[str, str] = {}
        # Arrays with the expected names have precedence.
        for name in sorted(self._archive.names, key=lambda name: _plain(name) != name):
            known = self._given.setdefault(_plain(name), name)
            if known not in (_plain(name), name):
                both = f"{known!r} and {name!r}"
                raise InputError(f"{path}: arrays {both} have the same role; remove one")

    @property
    def names(self) -> list[str]:
        """Return the names of the arrays."""
        return list(self._given)

    def header(self, name: str) -> ArrayHeader:
        """Return an array's type and shape; for images, in the form that ``read`` returns."""
        header = self._archive.header(self._given.get(name, name))
        if not name.startswith("x_"):
            return header
        shape = header.shape
        if self._channelsfirst_names(header):
            shape = (shape[0], *shape[2:], shape[1])
        return ArrayHeader(
            np.dtype(np.uint8) if header.dtype.kind in "fiu" else header.dtype, shape
        )

    def read(self, name: str) -> np.ndarray:
        """Return an array; images are converted to uint8 with channels last, or refused."""
        values = self._archive.read(self._given.get(name, name))
        if not name.startswith("x_"):
            return values
        if self._channelsfirst_names(ArrayHeader(values.dtype, values.shape)):
            note(self.path, f"{name} has shape {values.shape}: axis 1 is used as channels")
            values = np.moveaxis(values, 1, -1)
        return values if values.dtype == np.uint8 else self._as_bytes(name, values)

    @staticmethod
    def _channelsfirst_names(header: ArrayHeader) -> bool:
        return header.ndim == 4 and header.shape[1] <= MAX_CHANNELS < header.shape[3]

    def _as_bytes(self, name: str, values: np.ndarray) -> np.ndarray:
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
        if values.dtype.kind == "f" and low >= 0 and high <= 1:
            note(self.path, f"{name} is {values.dtype} in [0, 1]: stored as uint8, round(255 x)")
            return np.rint(values * BRIGHTEST).astype(np.uint8)
        if low >= 0 and high <= BRIGHTEST and (np.mod(values, 1) == 0).all():
            note(self.path, f"{name} is {values.dtype} of whole numbers: stored as uint8")
            return values.astype(np.uint8)
        raise InputError(
            f"{self.path}: {name}: expected uint8 (0..255), or floats in [0, 1], got "
            f"{values.dtype} from {low:g} to {high:g}; convert it: ((x - x.min()) / (x.max() - "
            "x.min()) * 255).round().astype('uint8')"
        )


def _plain(name: str) -> str:
    """Return ``x_train`` for ``train_images``, ``X_train`` and ``X``; keep unknown names."""
    words = name.lower().split("_")
    kinds = [WORDS[word] for word in words if word in WORDS]
    parts = [word for word in words if word in ("train", "test")]
    if len(kinds) != 1 or len(kinds) + len(parts) != len(words) or len(parts) > 1:
        return name
    return f"{kinds[0]}_{parts[0] if parts else 'train'}"


@SOURCES.register("npz")
class NpzReader(PathReader, OutlinedReader):
    """``npz:PATH``: ``x_train, y_train, x_test, y_test``, perhaps ``classes``; docs/data.md."""

    edition = 1  # Since 1, labels may be names of classes.

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        archive = self._archive()
        labels, classes, row = self._checked(archive)
        parts = [
            RowArrays(np.ascontiguousarray(archive.read(f"x_{part}").reshape(-1, *row)), numbers)
            for part, numbers in labels.items()
        ]
        test = parts[1] if len(parts) > 1 else None
        rule = "test is x_test; validation is a stratified draw from x_train" if parts[1:] else ""
        return images_info(self.name, self.path, classes, parts[0], rule), parts[0], test

    def outline(self) -> Outline:
        labels, classes, _ = self._checked(self._archive())
        return classes, labels["train"], labels.get("test")

    def instruction(self) -> str:
        return f"use the path of an .npz file with {', '.join(KEYS)}"

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
                    f"{self.path}: key {key!r} is missing; expected {', '.join(KEYS)}, got "
                    f"{first_names(archive.names)}"
                )
        if unused := [name for name in archive.names if name not in (*KEYS, "classes")]:
            note(self.path, f"not used: {first_names(unused)}; validation is drawn from x_train")
        return archive

    def _checked(self, archive: ImageArrays) -> Checked:
        """Return labels by part, class names and an image's shape; check all but the pixels."""
        try:
            parts = [part for part in PARTS if f"x_{part}" in archive.names]
            rows = [_image_shape(archive, part) for part in parts]
            if rows[0] != rows[-1]:
                shapes = f"got {rows[0]} in x_train and {rows[1]} in x_test"
                raise ValueError(f"expected images of one shape, {shapes}")
            names = named_classes(archive, "classes" if "classes" in archive.names else None)
            labels = {part: _labels(archive, part, names) for part in parts}
            where = {part: f"y_{part}" for part in parts}
            labels, classes = match_labels(self.path, labels, names, where)
        except InputError:  # Its message already names the file.
            raise
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
        return labels, classes, rows[0]


def first_names(names: Sequence[str]) -> str:
    """Return the first few names, for a message."""
    return ", ".join(names[:MOST_SHOWN]) + (", ..." if names[MOST_SHOWN:] else "")


def _image_shape(archive: ImageArrays, part: str) -> tuple[int, ...]:
    header = archive.header(f"x_{part}")
    if header.ndim == 3:
        header = ArrayHeader(header.dtype, (*header.shape, 1))
    check_images(f"x_{part}", header)
    return header.shape[1:]


def _labels(archive: ImageArrays, part: str, classes: tuple[str, ...]) -> np.ndarray:
    """Return labels (N,), numbers (int64) or names, one per image."""
    name, images = f"y_{part}", archive.header(f"x_{part}")
    labels = read_labels(archive, name, classes)
    if images.shape[0] != len(labels):
        count = images.shape[0]
        raise ValueError(f"x_{part} has {count} images but {name} has {len(labels)} labels")
    return labels


def read_labels(arrays: NamedArrays, name: str, classes: tuple[str, ...]) -> np.ndarray:
    """Return the labels of an array, numbers (int64) or names (N,)."""
    labels = plain_labels(arrays.read(name), name, arrays.path, classes)
    if labels.dtype.kind != "U" or labels.ndim != 1:
        check_labels(name, labels)
        labels = labels.astype(np.int64)
    return labels


def named_classes(arrays: NamedArrays, name: str | None) -> tuple[str, ...]:
    """Return the class names in an array; empty if ``name`` is None.

    Raises:
        ValueError: If the array is not two or more different strings or integers, (K,).
    """
    if name is None:
        return ()
    classes = arrays.read(name)
    if classes.dtype.kind not in "Uiu" or classes.ndim != 1:
        raise ValueError(
            f"classes: expected strings or integers (K,), got {classes.dtype} {classes.shape}"
        )
    names = tuple(str(name).strip() for name in classes.tolist())
    check_classes(names)
    return names


def match_labels(
    path: Path,
    given: dict[str, np.ndarray],
    names: tuple[str, ...],
    where: dict[str, str],
    known: bool = False,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the labels of each part as numbers of classes, and the names of the classes.

    Args:
        path: The file of the labels, for messages.
        given: The labels of each part from ``read_labels``, ``train`` first.
        names: The names of the classes; empty to use the training labels.
        where: The name of each part's labels, for messages.
        known: Whether there are embeddings of all classes, so that a class needs no training rows.
    """
    classes = names or _own_classes(given["train"], where["train"])
    check_classes(classes)
    parts = [LabelPart(found.tolist(), f"{path}: {where[part]}") for part, found in given.items()]
    labels = dict(zip(given, number_labels(parts, classes), strict=True))
    unseen = sorted({*range(len(classes))} - {*labels["train"].tolist()})
    if not known:
        _check_seen(labels, classes)
    elif unseen:
        missing = f"{len(unseen)} of {len(classes)} classes, such as {classes[unseen[0]]!r}"
        note(
            path, f"no training rows of {missing}; only `probe` and `clip-adapter` can predict them"
        )
    return labels, classes


def _own_classes(train: np.ndarray, name: str) -> tuple[str, ...]:
    """Return the names of the classes in the labels ``train`` (N,)."""
    return tuple(np.unique(train).tolist()) if train.dtype.kind == "U" else _numbered(train, name)


def _numbered(train: np.ndarray, name: str) -> tuple[str, ...]:
    """Return the names ``0``, ``1`` ... up to the largest label in ``train`` (N,); refuse gaps."""
    present = np.unique(train)
    gap = np.flatnonzero(present != np.arange(len(present)))
    if len(gap):  # Labels with gaps are codes, not class indices.
        raise ValueError(
            f"{name} has {present[gap[0]]} but not {gap[0]}; without the key 'classes', labels "
            "must be 0, 1, ... without gaps; renumber them: y = np.unique(y, return_inverse=True)"
            "[1]"
        )
    return tuple(map(str, range(len(present))))


def _check_seen(labels: dict[str, np.ndarray], classes: tuple[str, ...]) -> None:
    """Raise ``ValueError`` if a part has a class without training rows."""
    seen = {part: {*np.unique(numbers).tolist()} for part, numbers in labels.items()}
    for part, numbers in seen.items():
        if unseen := sorted(numbers - seen["train"]):
            missing = f"class {classes[unseen[0]]!r} ({unseen[0]}), which train lacks"
            raise ValueError(f"{part} has {missing}")
