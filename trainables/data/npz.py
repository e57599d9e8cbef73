from pathlib import Path

import numpy as np

from trainables.common.archives import ArrayArchive, ArrayHeader
from trainables.common.errors import InputError
from trainables.data._images import Images, check_images, image_statistics
from trainables.data._inputs import DatasetInfo, check_classes
from trainables.data._rows import RowArrays, check_label_form, check_labels
from trainables.data._source import SOURCES, PathReader, SourceStatus

PARTS = ("train", "test")
KEYS = ("x_train", "y_train", "x_test", "y_test")
Checked = tuple[dict[str, np.ndarray], tuple[str, ...], tuple[int, ...]]


@SOURCES.register("npz")
class NpzReader(PathReader):
    """``npz:PATH``: arrays ``x_train, y_train, x_test, y_test`` and, if wanted, ``classes``.

    Images are uint8, (N, H, W) or (N, H, W, C); labels are integers from 0, (N,) or (N, 1);
    ``classes`` (K,) are names. Pickled objects are never loaded. Mean and standard deviation are
    those of the training images. A relative path starts at the working directory.
    """

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        """Return the arrays of the archive, checked."""
        archive = self._archive()
        labels, classes, row = self._checked(archive)
        train, test = (
            RowArrays(
                np.ascontiguousarray(archive.read(f"x_{part}").reshape(-1, *row)), labels[part]
            )
            for part in PARTS
        )
        return self._info(train, classes), train, test

    def labels(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the labels, after checking everything but the pixels."""
        labels, _, _ = self._checked(self._archive())
        return labels["train"], labels["test"]

    def files(self) -> list[Path]:
        """Return the archive."""
        return [self.path]

    def test_paths(self) -> list[Path]:
        """Return the archive: training and test images share it."""
        return [self.path]

    def check(self) -> SourceStatus:
        """Check everything but the pixels."""
        try:
            archive = self._archive()
            labels, classes, _ = self._checked(archive)
        except InputError as error:
            remedy = f"give the path of an .npz file with {', '.join(KEYS)}"
            return SourceStatus(False, str(error), remedy)
        found = f"{len(labels['train'])} training and {len(labels['test'])} test images"
        return SourceStatus(True, f"{self.path}: {len(classes)} classes, {found}")

    def _archive(self) -> ArrayArchive:
        if not self.path.is_file():
            raise InputError(f"{self.path} does not exist (dataset {self.name!r})")
        archive = ArrayArchive(self.path)
        for key in KEYS:
            if key not in archive.names:
                raise InputError(f"{self.path}: key {key!r} is missing, needed: {', '.join(KEYS)}")
        return archive

    def _checked(self, archive: ArrayArchive) -> Checked:
        """Return labels by part, class names and the shape of an image; all but pixels checked."""
        try:
            rows = [_image_shape(archive, part) for part in PARTS]
            if rows[0] != rows[1]:
                raise ValueError(
                    f"x_test has images of shape {rows[1]}, x_train of {rows[0]}; they must be the "
                    "same"
                )
            labels = {part: _labels(archive, part) for part in PARTS}
            classes = _classes(archive, labels["train"])
            _check_label_sets(labels, classes)
        except InputError:  # Of the archive, which it names.
            raise
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
        return labels, classes, rows[0]

    def _info(self, train: RowArrays, classes: tuple[str, ...]) -> DatasetInfo:
        mean, std = image_statistics(train.values)
        height, width, channels = train.shape
        return DatasetInfo(
            name=self.name,
            classes=classes,
            inputs=Images((height, width), channels, mean, std, augmentation="crop-flip"),
            split_rule="test is x_test; validation is a stratified draw from x_train",
            source=f"{self.path}; mean and standard deviation of x_train",
        )


def _image_shape(archive: ArrayArchive, part: str) -> tuple[int, ...]:
    header = archive.header(f"x_{part}")
    if header.ndim == 3:
        header = ArrayHeader(header.dtype, (*header.shape, 1))
    check_images(f"x_{part}", header)
    return header.shape[1:]


def _labels(archive: ArrayArchive, part: str) -> np.ndarray:
    images, header = archive.header(f"x_{part}"), archive.header(f"y_{part}")
    if header.shape[1:] == (1,):
        header = ArrayHeader(header.dtype, header.shape[:1])
    check_label_form(f"y_{part}", header)
    if images.shape[0] != header.shape[0]:
        raise ValueError(
            f"x_{part} has {images.shape[0]} images but y_{part} {header.shape[0]} labels"
        )
    labels = archive.read(f"y_{part}").reshape(-1)
    check_labels(f"y_{part}", labels)
    return labels.astype(np.int64)


def _classes(archive: ArrayArchive, train: np.ndarray) -> tuple[str, ...]:
    if "classes" not in archive.names:
        names = _numbered(train)
    else:
        header = archive.header("classes")
        if header.dtype.kind != "U" or header.ndim != 1:
            raise ValueError(f"classes is {header.dtype} {header.shape}, allowed are strings (K,)")
        names = tuple(archive.read("classes").tolist())
    check_classes(names)
    return names


def _numbered(train: np.ndarray) -> tuple[str, ...]:
    """Return the names ``0``, ``1`` ... up to the largest of the labels ``train`` (N,)."""
    present = np.unique(train)
    gap = np.flatnonzero(present != np.arange(len(present)))
    if len(gap):  # Then they are codes, not class indices.
        raise ValueError(
            f"y_train holds {present[gap[0]]} but no {gap[0]}; without the key 'classes', labels "
            "must be 0, 1, ... with none left out"
        )
    return tuple(map(str, range(len(present))))


def _check_label_sets(labels: dict[str, np.ndarray], classes: tuple[str, ...]) -> None:
    """Refuse labels that name no class, and test data of a class that training lacks."""
    found = {part: set(np.unique(labels[part]).tolist()) for part in PARTS}
    for part, present in found.items():
        strange = present - set(range(len(classes)))
        if strange:
            raise ValueError(f"y_{part} holds {min(strange)}, allowed is 0 to {len(classes) - 1}")
    unseen = sorted(found["test"] - found["train"])
    if unseen:
        raise ValueError(f"test has class {classes[unseen[0]]!r} ({unseen[0]}), which train lacks")
