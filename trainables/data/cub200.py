"""Caltech-UCSD Birds."""

from __future__ import annotations

from pathlib import Path

from trainables.data._info import DatasetInfo
from trainables.data._official import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ArchivedReader,
    Listing,
    lines_of,
)
from trainables.data._registry import SOURCES
from trainables.errors import InputError


@SOURCES.register("cub200")
class Cub200Reader(ArchivedReader):
    """CUB-200-2011 (Wah et al., 2011): 200 birds, 5,994 training and 5,794 test images, RGB.

    Official layout: ``images.txt``, ``image_class_labels.txt``, ``train_test_split.txt``,
    ``classes.txt`` and ``images/``. Its images are for research only: nothing is downloaded.

    Images are stored at 224 x 224: brought to 256 x 256, then the centre, as MbLS (2022) evaluates.
    Training sees padded crops and flips of that centre; MbLS crops 224 x 224 anywhere.
    """

    folder = "CUB_200_2011"
    address = "https://data.caltech.edu/records/65de6-vp158"
    archive = "CUB_200_2011.tgz"
    md5 = "97eceeb196236b17998738112f37df78"
    size = (224, 224)
    resize = (256, 256)
    lists = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")

    def info(self, classes: tuple[str, ...]) -> DatasetInfo:
        """Return the constants."""
        return DatasetInfo(
            name=self.name,
            classes=classes,
            size=self.size,
            channels=3,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            augmentation="crop-flip",
            split_rule="official test set; validation is a stratified draw from the training set",
            source=f"Wah et al. (2011), {self.address}; normalised as MbLS (2022)",
        )

    def class_names(self) -> tuple[str, ...]:
        """Return the official names, such as ``001.Black_footed_Albatross``."""
        named = self._column("classes.txt")
        if list(named) != [str(number) for number in range(1, len(named) + 1)] or len(named) < 2:
            raise InputError(f"{self.path / 'classes.txt'} does not number its classes from 1")
        return tuple(named.values())

    def listing(self, train: bool, classes: tuple[str, ...]) -> Listing:
        """Return one part, in the official order."""
        labels, split = self._column("image_class_labels.txt"), self._column("train_test_split.txt")
        listing = []
        for image, name in self._column("images.txt").items():
            label = labels.get(image, "")
            if not (label.isdecimal() and 1 <= int(label) <= len(classes)):
                raise InputError(
                    f"{self.path / 'image_class_labels.txt'}: image {image} has class {label!r}, "
                    f"allowed is 1 to {len(classes)}"
                )
            if split.get(image) not in ("0", "1"):
                raise InputError(
                    f"{self.path / 'train_test_split.txt'}: image {image} has "
                    f"{split.get(image, '')!r}, allowed is 0 or 1"
                )
            if (split[image] == "1") == train:
                listing.append((self.path / "images" / name, int(label) - 1))
        return self._complete(listing, train, classes)

    def test_paths(self) -> list[Path]:
        """Return all images, for training and test images share folders, and the archive."""
        return [self.path / "images", self.root / self.archive]

    def _complete(self, listing: Listing, train: bool, classes: tuple[str, ...]) -> Listing:
        absent = sorted(set(range(len(classes))) - {label for _, label in listing})
        if absent:
            part = "training" if train else "test"
            raise InputError(f"{self.path}: class {classes[absent[0]]!r} has no {part} image")
        for folder in sorted({path.parent for path, _ in listing}):
            if not folder.is_dir():
                raise InputError(f"{folder} does not exist or is no folder")
        return listing

    def _column(self, name: str) -> dict[str, str]:
        """Return the second word of every line by its first, in order."""
        rows = lines_of(self.path / name)
        for number, words in enumerate(rows, 1):
            if len(words) != 2:
                raise InputError(f"{self.path / name}, line {number}: {words}, expected two words")
        return dict(rows)
