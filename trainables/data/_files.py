"""Images that are read from their files when needed, and readers of data sets of such files."""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from PIL import ExifTags, Image, ImageOps

from trainables.common.errors import InputError
from trainables.common.words import many
from trainables.data._images import Images
from trainables.data._inputs import check_classes
from trainables.data._labels import note
from trainables.data._rows import Rows, check_labels
from trainables.data._source import Outline, OutlinedReader

SUFFIXES = (
    *(".avif", ".bmp", ".dib", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pcx"),
    *(".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)
UPRIGHT = "upright"  # Marks data prepared since images are rotated by their EXIF orientation.
# Converting these to eight bits would cut values off.
DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "F")
# Errors of Pillow's decoders on damaged files.
_FAULTS = (OSError, ValueError, TypeError, SyntaxError, EOFError, Image.DecompressionBombError)


@dataclass(frozen=True, eq=False)
class ImageFiles(Rows):
    """Labelled images in files, decoded by several threads when they are read.

    Grey, CMYK, palette and transparent images become RGB, (H, W, 3).

    Attributes:
        paths: N files, one per image.
        labels: (N,), int64, every entry at least 0.
        size: Height and width of the images returned.
        resize: Size that an image is resized to (bilinear, antialiased) before its centre is cut
            out: one number for the shorter side, or height and width. If empty, files must have
            ``size`` already.
        validation: Rows of the data set's own validation list, if there is one.
    """

    paths: Sequence[Path]
    labels: np.ndarray
    size: tuple[int, int]
    resize: tuple[int, ...] = ()
    validation: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_labels("labels", self.labels)
        if len(self.paths) != len(self.labels):
            raise ValueError(f"{len(self.paths)} files but {len(self.labels)} labels")

    @property
    def dtype(self) -> np.dtype:
        return Images.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.size, 3)

    def take(self, indices: np.ndarray) -> Self:
        paths = [self.paths[index] for index in indices]
        return replace(self, paths=paths, labels=self.labels[indices], validation=None)

    def read(self, start: int, stop: int) -> np.ndarray:
        decode = partial(decoded_centre, size=self.size, resized=self.resize)
        with ThreadPoolExecutor() as pool:
            return np.stack(list(pool.map(decode, self.paths[start:stop])))

    def content(self) -> Iterator[bytes | memoryview]:
        """Yield reading options, labels, validation list, and the content of every file."""
        yield f"{self.size}{self.resize}{len(self)}".encode()
        yield np.ascontiguousarray(self.labels).data
        yield from self.own_list()
        yield from image_contents(self.paths)


def image_contents(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the length and the bytes of each image file, and a mark if it is stored rotated."""
    for path in paths:
        content = read_content(path)
        yield f"{len(content)}".encode()
        yield content
        # A file that is not an image is reported when it is decoded.
        with suppress(InputError), opened(path) as image:
            if _orientation(image) != 1:
                # Older prepared data has the image unrotated and must not match this content.
                yield UPRIGHT.encode()


def read_content(path: Path) -> bytes:
    """Return the bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


@contextmanager
def opened(path: Path | BinaryIO) -> Iterator[Image.Image]:
    """Open an image; raise ``InputError`` if it is damaged or has more than 8 bits per channel."""
    try:
        with Image.open(path) as image:
            if image.mode in DEEP_MODES:
                raise InputError(
                    f"{path}: expected an image of 8 bits per channel, got mode {image.mode}"
                )
            yield image
    except InputError:
        raise
    except _FAULTS as error:
        raise InputError(f"{path} cannot be read as an image: {error}") from error


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 is upright."""
    found = image.getexif().get(ExifTags.Base.Orientation, 1)
    return found if found in range(1, 9) else 1


def glance(path: Path | BinaryIO) -> tuple[tuple[int, int], str]:
    """Return the upright width and height of an image and its mode, without decoding it."""
    with opened(path) as image:
        width, height = image.size
        return (height, width) if _orientation(image) > 4 else (width, height), image.mode


def upright(image: Image.Image) -> Image.Image:
    """Return an image rotated by its EXIF orientation; phones store photographs rotated."""
    return image if _orientation(image) == 1 else ImageOps.exif_transpose(image)


def same_classes(train: Path, test: Path) -> tuple[str, ...]:
    """Return the class folders of ``train``; raise ``InputError`` unless ``test`` has the same."""
    for folder, other in ((train, test), (test, train)):
        for name in subfolders(other):
            if name not in subfolders(folder):
                raise InputError(f"{folder} has no class folder {name!r}, but {other.name} has one")
    return class_folders(train)


def is_image(path: Path) -> bool:
    """Return True if a file has an image's ending and is not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in ``folder``, without hidden ones."""
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist or is not a folder")
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the class folders in ``folder``; there must be at least two."""
    found = subfolders(folder)
    if len(found) < 2:
        raise InputError(f"{folder}: expected two or more class folders, got {found}")
    counts = Counter(map(str.strip, found))
    twice = [name for name in found if counts[name.strip()] > 1]
    if twice:
        raise InputError(
            f"{folder}: class folders {twice} differ only in blanks; rename or merge them"
        )
    return tuple(found)


def decoded_centre(
    path: Path | BinaryIO, size: tuple[int, int], resized: tuple[int, ...]
) -> np.ndarray:
    """Return an image's pixels (H, W, 3); see ``ImageFiles``."""
    # Importing torchvision takes a second.
    from torchvision.transforms.functional import center_crop, resize

    with opened(path) as image:
        pixels = upright(image).convert("RGB")
        if resized:
            pixels = center_crop(resize(pixels, list(resized)), list(size))
        elif (pixels.height, pixels.width) != size:
            raise InputError(
                f"{path}: expected {size[1]} x {size[0]} pixels, got "
                f"{pixels.width} x {pixels.height}"
            )
        return np.asarray(pixels)


Listing = Sequence[tuple[Path, int]]
"""File and label of every image of one part, in a fixed order."""
Listed = tuple[tuple[str, ...], Listing, Listing | None]
"""Class names, training images, and test images if there is an official test set."""


class ListedReader(OutlinedReader):
    """A data set of images whose files are listed.

    Attributes:
        lists: Text files in the folder that name images, labels or parts.
    """

    inputs: Images
    rows: type[ImageFiles] = ImageFiles
    resize: tuple[int, ...] = ()
    lists: tuple[str, ...] = ()

    def make_ready(self) -> None:
        """Unpack the files if they are in an archive."""

    @abstractmethod
    def listing(self) -> Listed:
        """Return class names and images; raise ``InputError`` if the folder's layout is wrong."""

    def image_files(self, listing: Listing, validation: np.ndarray | None = None) -> ImageFiles:
        """Return one part as files, which are decoded block by block."""
        paths = [path for path, _ in listing]
        labels = labels_of(listing)
        return self.rows(paths, labels, self.inputs.size, self.resize, validation)

    def outline(self) -> Outline:
        classes, train, test = self.listing()
        return classes, labels_of(train), None if test is None else labels_of(test)

    def signature(self) -> str:
        """Return the files' signature and ``UPRIGHT``, so that older prepared data is not used."""
        return f"{super().signature()} {UPRIGHT}"

    def files(self) -> list[Path]:
        """Return the lists and every image; no images if the layout is wrong."""
        found = [self.path / name for name in self.lists]
        with suppress(InputError):
            _, train, test = self.listing()
            found += [path for path, _ in (*train, *(test or ()))]
        return found


def labels_of(listing: Listing) -> np.ndarray:
    """Return the labels (N,), int64."""
    return np.array([label for _, label in listing], np.int64)


def list_classes(
    folder: Path,
    classes: Sequence[str],
    below: str = "",
    wanted: Callable[[Path], bool] = is_image,
    noun: str = "image",
) -> list[tuple[Path, int]]:
    """Return the wanted files of each folder ``folder/CLASS/below``, each with its class's number.

    Files are sorted by class and name. ``noun`` names one wanted file in messages. Notes count the
    other files that are not hidden.

    Raises:
        InputError: If a class has no wanted file.
    """
    listing: list[tuple[Path, int]] = []
    others: list[Path] = []
    for label, name in enumerate(classes):
        place = folder / name / below
        found, other = _sorted_out(place, wanted)
        if not found:
            raise InputError(f"{place} has no {noun}")
        listing += [(path, label) for path in found]
        others += other
    _note_others(folder, others, wanted, noun.partition(" ")[0])
    return listing


def _sorted_out(place: Path, wanted: Callable[[Path], bool]) -> tuple[list[Path], list[Path]]:
    """Return the sorted wanted files in a folder, and all other entries that are not hidden."""
    found, others = [], []
    for path in sorted(place.glob("*")):
        if wanted(path):
            found.append(path)
        elif not path.name.startswith("."):
            others.append(path)
    return found, others


def _note_others(
    folder: Path, others: Sequence[Path], wanted: Callable[[Path], bool], noun: str
) -> None:
    """Note how many files in class folders are not read."""
    folders = [path for path in others if path.is_dir()]
    nested = sum(wanted(path) for place in folders for path in place.rglob("*"))
    if nested:
        note(folder, f"not read: {many(nested, noun)} in folders inside class folders")
    endings = sorted({path.suffix or path.name for path in others if path not in folders})
    if endings:
        count = len(others) - len(folders)
        note(folder, f"not read: {many(count, 'file')} of other kinds: {', '.join(endings)}")


def read_classes(path: Path) -> tuple[str, ...]:
    """Return the class names in a JSON file ``{"classes": [NAME, NAME, ...]}``."""
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        names = document.get("classes") if isinstance(document, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError('expected {"classes": [NAME, NAME, ...]}')
        names = [name.strip() for name in names]  # Labels are stripped as well.
        check_classes(tuple(names))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from error
    return tuple(names)


def read_words(path: Path) -> list[tuple[int, list[str]]]:
    """Return line number (from 1) and words of every line that is not blank."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return [(number, words) for number, line in enumerate(lines, 1) if (words := line.split())]
