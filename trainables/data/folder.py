import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median_low
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from trainables.common.errors import InputError
from trainables.data._files import (
    Listed,
    ListedReader,
    class_folders,
    glance,
    is_image,
    labels_of,
    list_classes,
    opened,
    same_classes,
    subfolders,
    upright,
)
from trainables.data._images import images_info
from trainables.data._inputs import DatasetInfo
from trainables.data._labels import note_unused
from trainables.data._rows import RowArrays
from trainables.data._source import SOURCES, PathReader

PARTS = ("train", "test")
# Usual names of parts of a data set, such as test1, training_set and valid.
PART_NAME = re.compile(
    r"(train(ing)?|test(ing)?|val(id(ation)?)?|dev)[-_ ]?(set|data|images?)?[-_ ]?\d*",
    re.IGNORECASE,
)
# Modes of grey images; all others become RGB.
GREY_MODES = ("1", "L")
LARGEST_SIDE = 224  # Usual for networks for photographs; a limit, because all images are in memory.
LAYOUT = (
    "use PATH/<class>/<image> (`split.test` is held out), or PATH/train/<class>/<image> "
    "and PATH/test/<class>/<image>"
)


@SOURCES.register("folder")
class FolderReader(PathReader, ListedReader):
    """``folder:PATH``: class folders, or ``train`` and ``test`` with such folders; docs/data.md."""

    def instruction(self) -> str:
        return LAYOUT

    def listing(self) -> Listed:
        return list_folders(self.path, LAYOUT, is_image, "image (.jpg, .png, .tif and the like)")

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        classes, listing, others = self.listing()
        paths = [path for path, _ in (*listing, *(others or ()))]
        pixels = stack_images(paths, len(listing))
        train = RowArrays(pixels[: len(listing)], labels_of(listing))
        test = None if others is None else RowArrays(pixels[len(train) :], labels_of(others))
        rule = (
            "test is the folder test; validation is a stratified draw from train" if others else ""
        )
        return images_info(self.name, self.path, classes, train, rule), train, test

    def test_paths(self) -> list[Path]:
        """Return the folder ``test``, or else all class folders; none if the path is missing."""
        if is_parted(self.path):
            return [self.path / "test"]
        return [self.path / name for name in subfolders(self.path)] if self.path.is_dir() else []


def is_parted(folder: Path) -> bool:
    """Return True if a folder has the folders ``train`` and ``test``."""
    return all((folder / part).is_dir() for part in PARTS)


def list_folders(folder: Path, layout: str, wanted: Callable[[Path], bool], noun: str) -> Listed:
    """Return class names, training files and test files, each file with its label.

    A folder without ``train`` and ``test`` has only training files; its test files are None.
    """
    try:
        if is_parted(folder):
            note_unused(folder)
            folders = [folder / part for part in PARTS]
            classes = same_classes(*folders)
            train, test = (list_classes(part, classes, "", wanted, noun) for part in folders)
            return classes, train, test
        classes = class_folders(folder)
        _refuse_parts(folder, classes)
        return classes, list_classes(folder, classes, "", wanted, noun), None
    except InputError as error:
        raise InputError(f"{error}; {layout}") from error


def _refuse_parts(folder: Path, classes: Sequence[str]) -> None:
    """Refuse two or more folders with names of parts; a single class may be named ``train``."""
    parts = [name for name in classes if PART_NAME.fullmatch(name)]
    if len(parts) > 1:
        raise InputError(f"{folder}: the folders {parts} are named like parts, not like classes")


def stack_images(paths: Sequence[Path | BinaryIO], train: int) -> np.ndarray:
    """Return images in one size, uint8 (N, H, W, 1) if all are grey, else (N, H, W, 3).

    If their sizes differ, they become squares: their sides have the median length of the shorter
    sides of the first ``train`` images (the training images), at most ``LARGEST_SIDE``.
    """
    sizes, modes = zip(*map(glance, paths), strict=True)
    mode = "L" if set(modes) <= set(GREY_MODES) else "RGB"
    width, height = sizes[0]
    if len(set(sizes)) > 1:
        shorter = median_low(min(size) for size in sizes[:train])
        width = height = min(shorter, LARGEST_SIDE)
    pixels = np.empty((len(paths), height, width, len(mode)), np.uint8)
    for row, path in enumerate(paths):
        with opened(path) as image:
            converted = upright(image).convert(mode)
            fitted = ImageOps.fit(converted, (width, height), Image.Resampling.BILINEAR)
            pixels[row] = np.asarray(fitted).reshape(height, width, -1)
    return pixels
