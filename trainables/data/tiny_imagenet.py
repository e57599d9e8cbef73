"""Tiny-ImageNet."""

from pathlib import Path

from trainables.data._files import is_image, subfolders
from trainables.data._info import DatasetInfo
from trainables.data._official import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ArchivedReader,
    Listing,
    labelled,
    lines_of,
)
from trainables.data._registry import SOURCES
from trainables.errors import InputError


@SOURCES.register("tiny-imagenet")
class TinyImageNetReader(ArchivedReader):
    """Tiny-ImageNet (Stanford CS231n, 2015): 200 classes, 100,000 and 10,000 images, 64 x 64.

    Official layout: ``train/<wnid>/images/*.JPEG``, ``val/images``, ``val/val_annotations.txt``.
    The official test images have no labels, so the official validation images judge, as in MbLS
    (2022) and ACLS (2023). ImageNet's terms bind its images: nothing is downloaded.
    """

    folder = "tiny-imagenet-200"
    address = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    archive = "tiny-imagenet-200.zip"
    md5 = "90528d7ca1a48142e341f4ef8d21d0de"
    size = (64, 64)
    lists = ("val/val_annotations.txt",)

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
            split_rule="test is the official validation set; validation is a stratified draw from "
            "the training set, 50 a class with the usual tenth (MbLS, 2022, appendix B)",
            source=f"Stanford CS231n, {self.address}; normalised as Mukhoti et al. (2020)",
        )

    def class_names(self) -> tuple[str, ...]:
        """Return the sorted WordNet identifiers of the training folders."""
        found = tuple(subfolders(self.path / "train"))
        if len(found) < 2:
            raise InputError(f"{self.path / 'train'} has class folders {list(found)}, needs more")
        return found

    def listing(self, train: bool, classes: tuple[str, ...]) -> Listing:
        """Return one part: by class and file name, or in the order of the annotations."""
        if not train:
            return self._annotated(classes)
        listing: list[tuple[Path, int]] = []
        for label, name in enumerate(classes):
            folder = self.path / "train" / name / "images"
            names = sorted(p.name for p in folder.glob("*") if is_image(p))
            listing += labelled(folder, names, label)
        return listing

    def test_paths(self) -> list[Path]:
        """Return the folder ``val`` and the archive."""
        return [self.path / "val", self.root / self.archive]

    def _annotated(self, classes: tuple[str, ...]) -> Listing:
        path = self.path / "val" / "val_annotations.txt"
        numbers = {name: label for label, name in enumerate(classes)}
        listing = []
        for number, words in enumerate(lines_of(path), 1):
            if len(words) < 2 or words[1] not in numbers:
                raise InputError(
                    f"{path}, line {number}: {' '.join(words[:2])!r} is not an image and one of "
                    f"the {len(classes)} classes of train"
                )
            listing.append((self.path / "val" / "images" / words[0], numbers[words[1]]))
        if not listing:
            raise InputError(f"{path} lists no image")
        return listing
