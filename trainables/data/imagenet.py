"""ImageNet."""

from pathlib import Path

from trainables.data._files import is_image, subfolders
from trainables.data._info import DatasetInfo
from trainables.data._official import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Listing,
    OfficialReader,
    labelled,
)
from trainables.data._registry import SOURCES
from trainables.errors import InputError

CLASSES = 1000
PARTS = {True: "train", False: "val"}


@SOURCES.register("imagenet")
class ImageNetReader(OfficialReader):
    """ImageNet (ILSVRC 2012): 1000 classes, 1,281,167 training and 50,000 validation images.

    Unpacked as torchvision's ``ImageFolder`` wants it: ``imagenet/train/<wnid>/*.JPEG`` and
    ``imagenet/val/<wnid>/*.JPEG``. The official test images have no labels, so the validation
    images judge. Its terms forbid a download without an account. Archives are not kept once they
    are unpacked, so there is no checksum of the whole: an image that cannot be decoded is named.

    Images are stored once as uint8 at 224 x 224: shorter side 256, then the centre, which is the
    usual evaluation. That takes 151 kB an image, 193 GB for all, memory-mapped, and never much
    memory. Training therefore sees padded crops and flips of the centre, not crops of random size
    from the whole image as papers do: results are comparable with each other, not with theirs.
    """

    folder = "imagenet"
    address = "https://image-net.org/challenges/LSVRC/2012"
    size = (224, 224)
    resize = (256,)

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
            "the training set",
            source=f"Russakovsky et al. (2015), {self.address}; shorter side 256, centre 224",
        )

    def instruction(self) -> str:
        """Return what has to be put where, in one line."""
        return (
            f"get ILSVRC2012 from {self.address} and unpack it as "
            f"{self.path}/{{train,val}}/<wnid>/*.JPEG, {CLASSES} folders each"
        )

    def class_names(self) -> tuple[str, ...]:
        """Return the sorted WordNet identifiers, which both parts must have."""
        train, val = (subfolders(self.path / part) for part in PARTS.values())
        for part, found, other in (("train", train, val), ("val", val, train)):
            missing = sorted(set(other) - set(found))
            if missing:
                raise InputError(f"{self.path / part} has no class folder {missing[0]!r}")
        if len(train) != CLASSES:
            raise InputError(
                f"{self.path / 'train'} has {len(train)} class folders, ImageNet has {CLASSES}; "
                "give other images as folder:PATH"
            )
        return tuple(train)

    def listing(self, train: bool, classes: tuple[str, ...]) -> Listing:
        """Return one part, by class and file name."""
        listing: list[tuple[Path, int]] = []
        for label, name in enumerate(classes):
            folder = self.path / PARTS[train] / name
            names = sorted(p.name for p in folder.iterdir() if is_image(p))
            listing += labelled(folder, names, label)
        return listing

    def test_paths(self) -> list[Path]:
        """Return the folder ``val``."""
        return [self.path / PARTS[False]]
