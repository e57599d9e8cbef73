"""Anyone's images in one NumPy archive."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from trainables.data._arrays import ImageArrays, check_images, check_labels, image_statistics
from trainables.data._info import DatasetInfo
from trainables.data._labels import check_label_sets, class_names
from trainables.data._registry import SOURCES
from trainables.data._source import Reader, SourceStatus
from trainables.errors import InputError
from trainables.paths import local_path

# What a damaged, encrypted or unusual member makes NumPy and zipfile raise.
UNREADABLE = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zlib.error)
UNREADABLE_ARCHIVE = (OSError, zipfile.BadZipFile)
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
        arrays = self._load()
        train, test = self._part(arrays, "train"), self._part(arrays, "test")
        if train.images.shape[1:] != test.images.shape[1:]:
            raise InputError(
                f"{self.path}: x_test has images of shape {test.images.shape[1:]}, x_train of "
                f"{train.images.shape[1:]}; they must be the same"
            )
        classes = self._classes(arrays.get("classes"), train)
        check_label_sets(str(self.path), train.labels, test.labels, classes)
        return self._info(train, classes), train, test

    def files(self) -> list[Path]:
        """Return the archive."""
        return [self.path]

    def test_paths(self) -> list[Path]:
        """Return the archive: training and test images share it."""
        return [self.path]

    def check(self) -> SourceStatus:
        """Look whether the archive has the keys, without reading images."""
        remedy = f"give the path of an .npz file with {', '.join(KEYS)}"
        if not self.path.is_file():
            return SourceStatus(False, f"{self.path} does not exist", remedy)
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = {Path(name).stem for name in archive.namelist()}
        except UNREADABLE_ARCHIVE as error:
            return SourceStatus(False, f"{self.path} cannot be read: {error}", remedy)
        missing = [key for key in KEYS if key not in names]
        if missing:
            return SourceStatus(False, f"{self.path} has no {', '.join(missing)}", remedy)
        return SourceStatus(True, str(self.path))

    def full_name(self) -> str:
        """Return the name with the absolute path."""
        return f"npz:{self.path}"

    def _load(self) -> dict[str, np.ndarray]:
        if not self.path.is_file():
            raise InputError(f"{self.path} does not exist (dataset {self.name!r})")
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = set(archive.namelist())
        except UNREADABLE_ARCHIVE as error:
            raise InputError(f"{self.path} is not an intact .npz archive: {error}") from error
        for key in KEYS:
            if f"{key}.npy" not in names:
                raise InputError(f"{self.path}: key {key!r} is missing, needed: {', '.join(KEYS)}")
        wanted = (*KEYS, *(["classes"] if "classes.npy" in names else []))
        return {key: self._array(key) for key in wanted}

    def _array(self, key: str) -> np.ndarray:
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                return archive[key]
        except (*UNREADABLE, zipfile.BadZipFile) as error:
            raise InputError(f"{self.path}: key {key!r} cannot be read: {error}") from error

    def _part(self, arrays: dict[str, np.ndarray], part: str) -> ImageArrays:
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        images = images[..., None] if images.ndim == 3 else images
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        try:
            check_images(f"x_{part}", images)
            check_labels(f"y_{part}", labels)
            if len(images) != len(labels):
                raise ValueError(
                    f"x_{part} has {len(images)} images but y_{part} {len(labels)} labels"
                )
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
        return ImageArrays(np.ascontiguousarray(images), labels.astype(np.int64))

    def _classes(self, names: np.ndarray | None, train: ImageArrays) -> tuple[str, ...]:
        if names is None:
            return class_names(str(self.path), train.labels)
        if names.dtype.kind != "U" or names.ndim != 1:
            raise InputError(
                f"{self.path}: classes is {names.dtype} {names.shape}, allowed are strings (K,)"
            )
        return tuple(names.tolist())

    def _info(self, train: ImageArrays, classes: tuple[str, ...]) -> DatasetInfo:
        mean, std = image_statistics(train.images)
        try:
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
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
