"""Anyone's images in one folder a class."""

from __future__ import annotations

from pathlib import Path
from statistics import median_low

import numpy as np
from PIL import Image, ImageOps

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
LARGEST_SIDE = 224  # What networks for photographs expect; all images are held in memory.
LAYOUT = (
    "lay it out as PATH/<class>/<image>, of which `split.test` is held out, or as "
    "PATH/train/<class>/<image> and PATH/test/<class>/<image>"
)

Listing = dict[str, list[tuple[Path, int]]]
"""Part to image and label; without ``test`` where the whole folder is one part."""


@SOURCES.register("folder")
class FolderReader(Reader):
    """``folder:PATH``: ``PATH/<class>/<image>``, or ``train`` and ``test`` with class folders each.

    ``PATH/train/<class>/<image>`` and ``PATH/test/<class>/<image>``, with the same classes in both,
    are a training and a test set. Otherwise the folders in ``PATH`` are the classes, and the
    split's ``test`` is held out. Classes are the sorted names. Files of other kinds and hidden ones
    are passed over.

    Images of one size stay as they are. Of unequal ones the largest centred square is brought
    (bilinear, antialiased) to one side: the median of the training images' shorter sides (of all
    images' without a test set), at most 224. They stay grey if all of them are, otherwise all
    become RGB; transparency is dropped. All images are held in memory at once. A relative path
    starts at the working directory.
    """

    placeholder = "PATH"
    takes_argument = True

    @property
    def path(self) -> Path:
        """The folder that holds the classes, or ``train`` and ``test``."""
        return local_path(self.argument, f"dataset {self.name!r}")

    def read(self, download: bool) -> tuple[DatasetInfo, ImageArrays, ImageArrays | None]:
        """Return all images, by class and by file name."""
        classes, listing = self._listing()
        pixels = _stack(listing)
        labels = {part: _labels(images) for part, images in listing.items()}
        train = ImageArrays(pixels[: len(labels["train"])], labels["train"])
        if "test" not in listing:
            return self._info(train, classes, None), train, None
        test = ImageArrays(pixels[len(train) :], labels["test"])
        return self._info(train, classes, test), train, test

    def labels(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the labels that the folders' names give."""
        _, listing = self._listing()
        return _labels(listing["train"]), _labels(listing["test"]) if "test" in listing else None

    def files(self) -> list[Path]:
        """Return every image; none where the layout is wrong."""
        try:
            _, listing = self._listing()
        except InputError:
            return []
        return [path for images in listing.values() for path, _ in images]

    def test_paths(self) -> list[Path]:
        """Return the folder ``test``, or all class folders: any image may be a test image."""
        if self._parted():
            return [self.path / "test"]
        return [self.path / name for name in subfolders(self.path)] if self.path.is_dir() else []

    def check(self) -> SourceStatus:
        """List the images, without opening them."""
        try:
            classes, listing = self._listing()
        except InputError as error:
            return SourceStatus(False, str(error), LAYOUT)
        counts = {part: len(images) for part, images in listing.items()}
        found = (
            f"{counts['train']} training and {counts['test']} test images"
            if "test" in counts
            else f"{counts['train']} images, `split.test` of them test images"
        )
        return SourceStatus(True, f"{self.path}: {len(classes)} classes, {found}")

    def full_name(self) -> str:
        """Return the name with the absolute path."""
        return f"folder:{self.path}"

    def _parted(self) -> bool:
        return all((self.path / part).is_dir() for part in PARTS)

    def _listing(self) -> tuple[tuple[str, ...], Listing]:
        """Return the classes' names and all images, by class and by file name."""
        if self._parted():
            folders = {part: self.path / part for part in PARTS}
            classes = _same_classes(folders)
            return classes, {part: _images(folders[part], classes) for part in PARTS}
        try:
            classes = _classes(self.path)
            return classes, {"train": _images(self.path, classes)}
        except InputError as error:
            raise InputError(f"{error}; {LAYOUT}") from error

    def _info(
        self, train: ImageArrays, classes: tuple[str, ...], test: ImageArrays | None
    ) -> DatasetInfo:
        channels = train.images.shape[3]
        if test is None:
            mean, std = (0.5,) * channels, (0.5,) * channels
            split_rule = "no test folder: test and validation are stratified draws"
            constants = (
                "normalised to [-1, 1], because statistics of all images would include test images"
            )
        else:
            mean, std = image_statistics(train.images)
            split_rule = "test is the folder test; validation is a stratified draw from train"
            constants = "mean and standard deviation of the training images"
        return DatasetInfo(
            name=self.name,
            classes=classes,
            size=(train.images.shape[1], train.images.shape[2]),
            channels=channels,
            mean=mean,
            std=std,
            augmentation="crop-flip",
            split_rule=split_rule,
            source=f"{self.path}; {constants}",
        )


def _labels(images: list[tuple[Path, int]]) -> np.ndarray:
    return np.array([label for _, label in images], np.int64)


def _classes(folder: Path) -> tuple[str, ...]:
    found = subfolders(folder)
    if len(found) < 2:
        raise InputError(f"{folder} has class folders {found}, two or more are needed")
    return tuple(found)


def _same_classes(folders: dict[str, Path]) -> tuple[str, ...]:
    """Return the class folders of ``train``, which ``test`` must have too, and no others."""
    found = {part: subfolders(folder) for part, folder in folders.items()}
    classes = _classes(folders["train"])
    for part, other in (PARTS, PARTS[::-1]):
        for name in found[other]:
            if name not in found[part]:
                raise InputError(f"{folders[part]} has no class folder {name!r}, {other} has one")
    return classes


def _images(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    listing: list[tuple[Path, int]] = []
    for label, name in enumerate(classes):
        images = sorted(path for path in (folder / name).iterdir() if is_image(path))
        if not images:
            raise InputError(f"{folder / name} holds no image; allowed are {', '.join(SUFFIXES)}")
        listing += [(path, label) for path in images]
    return listing


def _stack(listing: Listing) -> np.ndarray:
    """Return the images of all parts in one size, as (N, H, W, 1), or (N, H, W, 3) with colour."""
    paths = [path for images in listing.values() for path, _ in images]
    sizes, modes = zip(*map(_glance, paths), strict=True)
    mode = "L" if set(modes) <= set(GREY_MODES) else "RGB"
    width, height = sizes[0]
    if len(set(sizes)) > 1:
        shorter = median_low(min(size) for size in sizes[: len(listing["train"])])
        width = height = min(shorter, LARGEST_SIDE)
    pixels = np.empty((len(paths), height, width, len(mode)), np.uint8)
    for row, path in enumerate(paths):
        with opened(path) as image:
            fitted = ImageOps.fit(image.convert(mode), (width, height), Image.Resampling.BILINEAR)
            pixels[row] = np.asarray(fitted).reshape(height, width, -1)
    return pixels


def _glance(path: Path) -> tuple[tuple[int, int], str]:
    """Return width and height, and mode, of an image without decoding it."""
    with opened(path) as image:
        return image.size, image.mode
