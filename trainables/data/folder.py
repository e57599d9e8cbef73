"""Anyone's images in one folder a class."""

from pathlib import Path

import numpy as np

from trainables.data._arrays import ImageArrays, image_statistics
from trainables.data._files import SUFFIXES, is_image, opened, subfolders
from trainables.data._info import DatasetInfo
from trainables.data._registry import SOURCES
from trainables.data._source import Reader, SourceStatus
from trainables.errors import InputError
from trainables.paths import local_path

PARTS = ("train", "test")
# Modes whose pixels are eight bits of grey; all others become RGB.
GREY_MODES = ("1", "L")


@SOURCES.register("folder")
class FolderReader(Reader):
    """``folder:PATH``: ``PATH/train/<class>/<image>`` and ``PATH/test/<class>/<image>``.

    Classes are the sorted names of the folders in ``train``; ``test`` must have the same ones. All
    images have one size. They stay grey if all of them are, otherwise all become RGB. Files of
    other kinds and hidden ones are passed over. All images are held in memory at once. A relative
    path starts at the working directory.
    """

    placeholder = "PATH"
    takes_argument = True

    @property
    def path(self) -> Path:
        """The folder that holds ``train`` and ``test``."""
        return local_path(self.argument, f"dataset {self.name!r}")

    def read(self, download: bool) -> tuple[DatasetInfo, ImageArrays, ImageArrays | None]:
        """Return all images, by class and by file name."""
        classes = self._classes()
        listing = {part: self._images(part, classes) for part in PARTS}
        paths = [path for part in PARTS for path, _ in listing[part]]
        pixels = _stack(paths)
        count = len(listing["train"])
        labels = {part: np.array([k for _, k in listing[part]], np.int64) for part in PARTS}
        train = ImageArrays(pixels[:count], labels["train"])
        return self._info(train, classes), train, ImageArrays(pixels[count:], labels["test"])

    def files(self) -> list[Path]:
        """Return every image below ``train`` and ``test``."""
        return [
            path
            for part in PARTS
            for path in sorted((self.path / part).rglob("*"))
            if is_image(path)
        ]

    def test_paths(self) -> list[Path]:
        """Return the folder ``test``."""
        return [self.path / "test"]

    def check(self) -> SourceStatus:
        """List the images, without opening them."""
        try:
            classes = self._classes()
            counts = {part: len(self._images(part, classes)) for part in PARTS}
        except InputError as error:
            return SourceStatus(False, str(error), "lay it out as PATH/{train,test}/<class>/*.png")
        found = f"{counts['train']} training and {counts['test']} test images"
        return SourceStatus(True, f"{self.path}: {len(classes)} classes, {found}")

    def full_name(self) -> str:
        """Return the name with the absolute path."""
        return f"folder:{self.path}"

    def _classes(self) -> tuple[str, ...]:
        found = {part: subfolders(self.path / part) for part in PARTS}
        if len(found["train"]) < 2:
            raise InputError(
                f"{self.path / 'train'} has class folders {found['train']}, two or more are needed"
            )
        for part, other in (PARTS, PARTS[::-1]):
            for name in found[other]:
                if name not in found[part]:
                    raise InputError(
                        f"{self.path / part} has no class folder {name!r}, {other} has one"
                    )
        return tuple(found["train"])

    def _images(self, part: str, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
        listing: list[tuple[Path, int]] = []
        for label, name in enumerate(classes):
            folder = self.path / part / name
            images = sorted(path for path in folder.iterdir() if is_image(path))
            if not images:
                raise InputError(f"{folder} holds no image; allowed are {', '.join(SUFFIXES)}")
            listing += [(path, label) for path in images]
        return listing

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
            split_rule="test is the folder test; validation is a stratified draw from train",
            source=f"{self.path}; mean and standard deviation of the training images",
        )


def _stack(paths: list[Path]) -> np.ndarray:
    """Return all images as (N, H, W, 1), or (N, H, W, 3) as soon as one has colour."""
    first = _open(paths[0])
    pixels = np.empty((len(paths), *first.shape[:2], first.shape[2]), np.uint8)
    for row, path in enumerate(paths):
        image = _open(path)
        if image.shape[:2] != first.shape[:2]:
            raise InputError(
                f"{path} is {_size(image)}, but {paths[0]} is {_size(first)}; all must be one size"
            )
        if image.shape[2] > pixels.shape[3]:
            pixels = np.repeat(pixels, 3, axis=3)
        pixels[row] = image
    return pixels


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]} x {image.shape[0]} pixels"


def _open(path: Path) -> np.ndarray:
    with opened(path) as image:
        grey = image.mode in GREY_MODES
        pixels = np.asarray(image.convert("L" if grey else "RGB"))
    return pixels[..., None] if grey else pixels
