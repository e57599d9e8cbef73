from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from trainables.common.errors import InputError
from trainables.data._files import Listed, ListedReader, Listing, read_words
from trainables.data._inputs import DatasetInfo
from trainables.data._labels import note
from trainables.data._published import PublishedReader
from trainables.data._rows import OWN, Rows
from trainables.data._source import SOURCES, PathReader
from trainables.data._whole_images import WholeFiles, WholeImages
from trainables.data.imagenet import WHOLE

PARTS = ("train", "val", "test")


class LongTailListsReader(PathReader, PublishedReader, ListedReader):
    """A data set whose lists name long-tailed training and balanced validation and test images.

    Attributes:
        prefix: Prefix of the lists' names.
        folder: The images' folder, below the root.
        listed: Number of images in each published list.
    """

    kind = WholeImages
    rows = WholeFiles
    inputs = WHOLE
    validation = OWN
    split_rule = "the lists train (long tail), val and test (balanced) of Liu et al. (2019)"
    address = "https://github.com/zhmiao/OpenLongTailRecognition-OLTR"
    citation = f"Liu et al. (2019), {address}; whole images, evaluated at 224 of 256"
    resize = (256,)
    prefix = ""
    folder = ""
    listed: ClassVar[tuple[int, int, int]]

    def instruction(self) -> str:
        names = ", ".join(path.name for path in self._lists())
        return f"put {names} from {self.address} into {self.path}, images into {self._images}"

    def read(self, download: bool) -> tuple[DatasetInfo, Rows, Rows | None]:
        classes, train, test = self.listing()
        for path, count in zip(self._lists(), self.listed, strict=True):
            if (found := len(read_words(path))) != count:
                note(path, f"has {found:,} images, but the published list has {count:,}")
        rows = self.image_files(train, self.own_validation())
        return self.info(classes), rows, self.image_files(test or ())

    def listing(self) -> Listed:
        """Return class names, the images of train and val together, and those of test."""
        named: dict[int, str] = {}
        train, val, test = (self._listed(path, named) for path in self._lists())
        if sorted(named) != list(range(len(named))) or len(set(named.values())) < len(named):
            raise InputError(
                f"{self._lists()[0]}: expected classes 0 to K-1, with one folder per class"
            )
        classes = tuple(named[label] for label in range(len(named)))
        return classes, [*train, *val], test

    def own_validation(self) -> np.ndarray:
        train, val, _ = (len(read_words(path)) for path in self._lists())
        return np.arange(train, train + val)

    def files(self) -> list[Path]:
        return [*self._lists(), *super().files()]

    def test_paths(self) -> list[Path]:
        """Return the test images, or the folder of all images if the lists cannot be used."""
        with suppress(InputError):
            return [path for path, _ in self.listing()[2] or ()]
        return [self._images]

    @cached_property
    def _images(self) -> Path:
        return self.root / self.folder

    def _lists(self) -> list[Path]:
        return [self.path / f"{self.prefix}_{part}.txt" for part in PARTS]

    def _listed(self, path: Path, named: dict[int, str]) -> Listing:
        """Return a list's images and labels; the first list fills ``named`` (folder by label)."""
        names = not named
        listing = []
        for number, words in read_words(path):
            if len(words) != 2 or not words[1].isdecimal():
                raise InputError(
                    f"{path}, line {number}: expected an image and a class number, "
                    f"got {' '.join(words)!r}"
                )
            place, label = words[0], int(words[1])
            name = "/".join(place.split("/")[1:-1])
            if names and named.setdefault(label, name) != name:
                raise InputError(
                    f"{path}, line {number}: expected an image of class {label} in folder "
                    f"{named[label]!r}, as before, got folder {name!r}"
                )
            if label not in named:
                raise InputError(f"{path}, line {number}: class {label} has no training image")
            image = self._found(place, named[label])
            if image is None:
                raise InputError(f"{path}, line {number}: {self._images / place} does not exist")
            listing.append((image, label))
        return listing

    def _found(self, place: str, name: str) -> Path | None:
        """Return an image's path, or None; ``FOLDER/FILE`` may also be ``FOLDER/CLASS/FILE``."""
        folder, _, file = place.partition("/")
        below = [place] if "/" in file else [place, f"{folder}/{name}/{file}"]
        return next(filter(Path.is_file, map(self._images.joinpath, below)), None)


@SOURCES.register("imagenet-lt")
class ImageNetLongTailReader(LongTailListsReader):
    """ImageNet-LT: 115,846 training, 20,000 validation and 50,000 test images of 1,000 classes."""

    prefix = "ImageNet_LT"
    folder = "imagenet"
    listed = (115_846, 20_000, 50_000)


@SOURCES.register("places-lt")
class PlacesLongTailReader(LongTailListsReader):
    """Places-LT: 62,500 training, 7,300 validation and 36,500 test images of 365 classes."""

    prefix = "Places_LT"
    folder = "places365"
    listed = (62_500, 7_300, 36_500)
