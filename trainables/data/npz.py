"""Anyone's images in one NumPy archive."""

from pathlib import Path

import numpy as np

from trainables.archives import ArrayArchive, ArrayHeader
from trainables.data._arrays import (
    ImageArrays,
    check_images,
    check_label_form,
    check_labels,
    image_statistics,
)
from trainables.data._info import DatasetInfo, check_classes
from trainables.data._labels import check_label_sets, class_names
from trainables.data._registry import SOURCES
from trainables.data._source import Reader, SourceStatus
from trainables.errors import InputError
from trainables.paths import local_path

PARTS = ("train", "test")
KEYS = ("x_train", "y_train", "x_test", "y_test")


@SOURCES.register("npz")
class NpzReader(Reader):
    """``npz:PATH``: arrays ``x_train, y_train, x_test, y_test`` and, if wanted, ``classes``.

    Images are uint8, (N, H, W) or (N, H, W, C); labels are integers from 0, (N,) or (N, 1);
    ``classes`` (K,) are names. Pickled objects are never loaded. Mean and standard deviation are
    those of the training images. A relative path starts at the working directory.
    """

    placeholder = "PATH"
    takes_argument = True

    @property
    def path(self) -> Path:
        """The archive."""
        return local_path(self.argument, f"dataset {self.name!r}")

    def read(self, download: bool) -> tuple[DatasetInfo, ImageArrays, ImageArrays | None]:
        """Return the arrays of the archive, checked."""
        archive = self._archive()
        labels, classes = self._checked(archive)
        shape = (-1, *self._image_shape(archive, "train"))
        images = (archive.read(f"x_{part}").reshape(shape) for part in PARTS)
        train, test = (
            ImageArrays(np.ascontiguousarray(pixels), labels[part])
            for part, pixels in zip(PARTS, images, strict=True)
        )
        return self._info(train, classes), train, test

    def labels(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the labels, after checking everything but the pixels."""
        labels, _ = self._checked(self._archive())
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
            labels, classes = self._checked(archive)
        except InputError as error:
            remedy = f"give the path of an .npz file with {', '.join(KEYS)}"
            return SourceStatus(False, str(error), remedy)
        found = f"{len(labels['train'])} training and {len(labels['test'])} test images"
        return SourceStatus(True, f"{self.path}: {len(classes)} classes, {found}")

    def full_name(self) -> str:
        """Return the name with the absolute path."""
        return f"npz:{self.path}"

    def _archive(self) -> ArrayArchive:
        if not self.path.is_file():
            raise InputError(f"{self.path} does not exist (dataset {self.name!r})")
        archive = ArrayArchive(self.path)
        for key in KEYS:
            if key not in archive.names:
                raise InputError(f"{self.path}: key {key!r} is missing, needed: {', '.join(KEYS)}")
        return archive

    def _checked(self, archive: ArrayArchive) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return labels by part, and class names, after checking all but the pixels."""
        shapes = [self._image_shape(archive, part) for part in PARTS]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"{self.path}: x_test has images of shape {shapes[1]}, x_train of {shapes[0]}; "
                "they must be the same"
            )
        labels = {part: self._labels(archive, part) for part in PARTS}
        classes = self._classes(archive, labels["train"])
        check_label_sets(str(self.path), labels["train"], labels["test"], classes)
        return labels, classes

    def _image_shape(self, archive: ArrayArchive, part: str) -> tuple[int, ...]:
        header = archive.header(f"x_{part}")
        if header.ndim == 3:
            header = ArrayHeader(header.dtype, (*header.shape, 1))
        try:
            check_images(f"x_{part}", header)
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
        return header.shape[1:]

    def _labels(self, archive: ArrayArchive, part: str) -> np.ndarray:
        images, header = archive.header(f"x_{part}"), archive.header(f"y_{part}")
        if header.shape[1:] == (1,):
            header = ArrayHeader(header.dtype, header.shape[:1])
        try:
            check_label_form(f"y_{part}", header)
            if images.shape[0] != header.shape[0]:
                raise ValueError(
                    f"x_{part} has {images.shape[0]} images but y_{part} {header.shape[0]} labels"
                )
            labels = archive.read(f"y_{part}").reshape(-1)
            check_labels(f"y_{part}", labels)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
        return labels.astype(np.int64)

    def _classes(self, archive: ArrayArchive, train: np.ndarray) -> tuple[str, ...]:
        if "classes" not in archive.names:
            names = class_names(str(self.path), train)
        else:
            header = archive.header("classes")
            if header.dtype.kind != "U" or header.ndim != 1:
                raise InputError(
                    f"{self.path}: classes is {header.dtype} {header.shape}, allowed are strings "
                    "(K,)"
                )
            names = tuple(archive.read("classes").tolist())
        try:
            check_classes(names)
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
        return names

    def _info(self, train: ImageArrays, classes: tuple[str, ...]) -> DatasetInfo:
        mean, std = image_statistics(train.images)
        return DatasetInfo(
            name=self.name,
            classes=classes,
            size=(train.images.shape[1], train.images.shape[2]),
            channels=train.images.shape[3],
            mean=mean,
            std=std,
            augmentation="crop-flip",
            split_rule="test is x_test; validation is a stratified draw from x_train",
            source=f"{self.path}; mean and standard deviation of x_train",
        )
