"""Reads images with masks in the layout of PASCAL VOC."""

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from trainables.common.errors import InputError
from trainables.data._files import (
    UPRIGHT,
    glance,
    image_contents,
    opened,
    read_classes,
    read_words,
    upright,
)
from trainables.data._inputs import DatasetInfo
from trainables.data._masked import MASK_OUTSIDE, VOID, MaskedImages
from trainables.data._published import IMAGENET_MEAN, IMAGENET_STD
from trainables.data._rows import OWN, Rows
from trainables.data._source import Reader, SourceStatus

IMAGES, MASKS, LISTS = "JPEGImages", "SegmentationClass", "ImageSets/Segmentation"
CLASSES = "classes.json"
MASK_MODES = ("1", "L", "P")
LAYOUT = (
    f"use PATH/{IMAGES}/<name>.jpg, PATH/{MASKS}/<name>.png and "
    f"PATH/{LISTS}/train.txt, val.txt, test.txt with a name per line"
)

Pairs = Sequence[tuple[Path, Path]]
"""Image and mask of each row."""


@dataclass(frozen=True, eq=False)
class MaskedFiles(Rows):
    """Images and masks in their files, decoded by several threads when they are read.

    Attributes:
        pairs: Image and mask of each row.
        size: Height and width of the stored rows; smaller images are padded.
        num_classes: K; a mask with another class is an ``InputError``.
        validation: Rows of the data set's own validation list, if there is one.
    """

    pairs: Pairs
    size: tuple[int, int]
    num_classes: int
    validation: np.ndarray | None = None

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        """Return zeros (N,), because whole images have no label."""
        return np.zeros(len(self.pairs), np.int64)

    @property
    def dtype(self) -> np.dtype:
        return MaskedImages.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.size, 4)

    def take(self, indices: np.ndarray) -> Self:
        return replace(self, pairs=[self.pairs[index] for index in indices], validation=None)

    def read(self, start: int, stop: int) -> np.ndarray:
        with ThreadPoolExecutor() as pool:
            rows = list(pool.map(self._row, self.pairs[start:stop]))
        return np.stack(rows) if rows else np.empty((0, *self.shape), self.dtype)

    def content(self) -> Iterator[bytes | memoryview]:
        yield f"{self.size}{len(self)}".encode()
        yield from self.own_list()
        yield from image_contents(itertools.chain(*self.pairs))

    def _row(self, files: tuple[Path, Path]) -> np.ndarray:
        image, mask = files
        with opened(image) as picture:
            pixels = np.asarray(upright(picture).convert("RGB"))
        classes = read_mask(mask)
        if classes.shape != pixels.shape[:2]:
            raise InputError(
                f"{mask} is {classes.shape[1]} x {classes.shape[0]} pixels, but {image} is "
                f"{pixels.shape[1]} x {pixels.shape[0]}"
            )
        wrong = classes[(classes >= self.num_classes) & (classes != VOID)]
        if len(wrong):
            raise InputError(
                f"{mask}: expected classes 0 to {self.num_classes - 1}, or {VOID} for void, got "
                f"{wrong[0]}"
            )
        row = np.zeros(self.shape, self.dtype)
        row[..., 3] = MASK_OUTSIDE
        row[: classes.shape[0], : classes.shape[1]] = np.dstack((pixels, classes))
        return row


def read_mask(path: Path) -> np.ndarray:
    """Return a mask's classes (H, W), uint8."""
    with opened(path) as image:
        if image.mode not in MASK_MODES:
            raise InputError(
                f"{path}: expected a palette or grey PNG whose values are classes, got image mode "
                f"{image.mode}"
            )
        return np.asarray(upright(image), np.uint8)


class MaskedReader(Reader):
    """A data set of images with masks in the layout of PASCAL VOC.

    Attributes:
        crop: Side of the square crops that training uses; 0 for whole images.
        names: Class names; if empty they are read from ``classes.json`` or from the masks.
    """

    kind = MaskedImages
    validation = OWN
    edition = 1  # Since 1, the fingerprint contains the validation list.
    accepts = ("crop",)
    crop = 0
    names: tuple[str, ...] = ()

    @property
    @abstractmethod
    def path(self) -> Path:
        """The data set's folder."""

    @property
    def masks(self) -> str:
        return MASKS

    def adjust(self, settings: Any) -> None:
        """Accept ``crop``, the side of the square crops that training uses, in pixels."""
        super().adjust(settings)
        self.crop = settings.get("crop", 0)
        try:
            MaskedImages((1, 1), IMAGENET_MEAN, IMAGENET_STD, self.crop)
        except ValueError as error:
            raise InputError(f"dataset {self.name!r}: inputs.{error}") from error

    def lists(self) -> dict[str, Path]:
        """Return the existing files of the lists ``train``, ``val`` and ``test``, by list name."""
        found = {part: self.path / LISTS / f"{part}.txt" for part in ("train", "val", "test")}
        return {part: path for part, path in found.items() if path.is_file()}

    def parts(self) -> dict[str, Pairs]:
        """Return images and masks of each part; refuse missing files and images listed twice."""
        lists = self.lists()
        if "train" not in lists:
            raise InputError(f"{self.path / LISTS / 'train.txt'} does not exist; {LAYOUT}")
        found = {part: self._listed(path) for part, path in lists.items()}
        seen: dict[Path, Path] = {}
        for part, path in lists.items():
            for image, _ in found[part]:
                if image in seen:
                    raise InputError(
                        f"{seen[image]} and {path} both list {image.stem}; list each image "
                        "only once"
                    )
                seen[image] = path
        return found

    def _listed(self, path: Path) -> Pairs:
        pairs = [
            (self.path / IMAGES / f"{name}.jpg", self.path / self.masks / f"{name}.png")
            for _, words in read_words(path)
            for name in words
        ]
        if not pairs:
            raise InputError(f"{path} is empty; expected one name per line")
        for file in itertools.chain(*pairs):
            if not file.is_file():
                raise InputError(f"{file} does not exist, but {path} lists it")
        return pairs

    def read(self, download: bool) -> tuple[DatasetInfo, MaskedFiles, MaskedFiles | None]:
        """Return images and masks as lists of files, after reading the size of every image."""
        train, test, own = self._rows()
        widths, heights = zip(*(glance(i)[0] for i, _ in (*train, *(test or ()))), strict=True)
        size = max(heights), max(widths)
        rule = "test is a list of the data set; validation is a draw from train"
        if test is None:
            rule = "no list of test images: test and validation are draws from train"
        elif own is not None:
            rule = "the data set's own lists train, val and test"
        classes = self._classes(train)
        rows = MaskedFiles(train, size, len(classes), own)
        info = DatasetInfo(
            name=self.name,
            classes=classes,
            inputs=MaskedImages(size, IMAGENET_MEAN, IMAGENET_STD, self.crop),
            split_rule=rule,
            source=f"{self.path}; mean and standard deviation of ImageNet's training images",
        )
        return info, rows, None if test is None else replace(rows, pairs=test, validation=None)

    def _rows(self) -> tuple[Pairs, Pairs | None, np.ndarray | None]:
        """Return training and validation pairs, test pairs, and numbers of the validation pairs.

        If the lists ``val`` and ``test`` exist, the pairs of ``val`` follow those of ``train``.
        Otherwise there are no validation pairs (None), and the test pairs are those of the list
        that exists, or None.
        """
        parts = self.parts()
        train, val, test = parts["train"], parts.get("val"), parts.get("test")
        if test is None or val is None:
            return train, test or val, None
        return [*train, *val], test, np.arange(len(train), len(train) + len(val))

    def _classes(self, train: Pairs) -> tuple[str, ...]:
        path = self.path / CLASSES
        if self.names:
            return self.names
        if path.exists():
            return read_classes(path)
        shown = (mask[mask != VOID] for mask in (read_mask(path) for _, path in train))
        highest = max(int(mask.max(initial=0)) for mask in shown)
        return tuple(str(number) for number in range(max(highest, 1) + 1))

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        train, test, _ = self._rows()
        judged = None if test is None else np.zeros(len(test), np.int64)
        return np.zeros(len(train), np.int64), judged

    def own_validation(self) -> np.ndarray | None:
        return self._rows()[2]

    def signature(self) -> str:
        """Return the files' signature and ``UPRIGHT``, so that older prepared data is not used."""
        return f"{super().signature()} {UPRIGHT}"

    def files(self) -> list[Path]:
        """Return lists, class names, images and masks; no images if a list has a fault."""
        found = [*self.lists().values(), self.path / CLASSES]
        with suppress(InputError):
            found += [file for part in self.parts().values() for pair in part for file in pair]
        return found

    def test_paths(self) -> list[Path]:
        """Return the files of the list of test images, or else of ``train``.

        If a list has a fault, the whole folder is returned.
        """
        try:
            train, test, _ = self._rows()
        except InputError:
            return [self.path]
        return [file for pair in (test or train) for file in pair]

    def check(self) -> SourceStatus:
        """Check that every listed file exists, without opening it."""
        try:
            found = ", ".join(f"{len(part):,} {name}" for name, part in self.parts().items())
        except InputError as error:
            return SourceStatus(False, str(error), LAYOUT)
        return SourceStatus(True, f"{self.path}: images with masks: {found}")
