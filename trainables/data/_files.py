"""Images that stay in their files until they are needed, so that any number of them will do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torchvision.transforms.functional import center_crop, resize

from trainables.data._arrays import LabelledImages, check_labels
from trainables.errors import InputError

if TYPE_CHECKING:
    from hashlib import _Hash

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Converting these to eight bits would cut values off.
DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "F")


@dataclass(frozen=True, eq=False)
class ImageFiles(LabelledImages):
    """Labelled images in files, decoded by several threads when they are read.

    Grey, CMYK, palette and transparent images become RGB, (H, W, 3).

    Attributes:
        paths: One file an image, N of them.
        labels: (N,), int64, every entry at least 0.
        size: Height and width of every image read.
        resize: What an image is first brought to (bilinear, antialiased) before its centre is
            kept: one number for the shorter side, two for height and width. With none, files must
            have ``size`` already.

    Raises:
        ValueError: If the lengths differ or a label is negative.
    """

    paths: Sequence[Path]
    labels: np.ndarray
    size: tuple[int, int]
    resize: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check lengths and labels."""
        check_labels("labels", self.labels)
        if len(self.paths) != len(self.labels):
            raise ValueError(f"{len(self.paths)} files but {len(self.labels)} labels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return height, width and three channels."""
        return (*self.size, 3)

    def take(self, indices: np.ndarray) -> ImageFiles:
        """Return the rows ``indices`` (M,), in that order; nothing is read."""
        paths = [self.paths[index] for index in indices]
        return ImageFiles(paths, self.labels[indices], self.size, self.resize)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Decode the rows from ``start`` to before ``stop``."""
        decode = partial(_decoded, size=self.size, resized=self.resize)
        with ThreadPoolExecutor() as pool:
            return np.stack(list(pool.map(decode, self.paths[start:stop])))

    def update(self, digest: _Hash) -> None:
        """Feed how files are read, the labels and the bytes of every file to a hash."""
        digest.update(f"{self.size}{self.resize}{len(self)}".encode())
        digest.update(np.ascontiguousarray(self.labels).data)
        for path in self.paths:
            content = _content(path)
            digest.update(f"{len(content)}".encode())
            digest.update(content)


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open an image of eight bits a channel.

    Raises:
        InputError: If it is absent, damaged or deeper; also for faults that show while it is used.
    """
    try:
        with Image.open(path) as image:
            if image.mode in DEEP_MODES:
                raise InputError(f"{path} has image mode {image.mode}, allowed is 8 bits a channel")
            yield image
    except InputError:
        raise
    # Pillow's decoders raise many kinds of errors on damaged files.
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as an image: {error}") from error


def is_image(path: Path) -> bool:
    """Tell whether a file has the ending of an image and is not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in ``folder``, without hidden ones.

    Raises:
        InputError: If ``folder`` is none.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist or is no folder")
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _decoded(path: Path, size: tuple[int, int], resized: tuple[int, ...]) -> np.ndarray:
    with opened(path) as image:
        pixels = image.convert("RGB")
        if resized:
            pixels = center_crop(resize(pixels, list(resized)), list(size))
        elif (pixels.height, pixels.width) != size:
            raise InputError(
                f"{path} is {pixels.width} x {pixels.height} pixels, expected are "
                f"{size[1]} x {size[0]}"
            )
        return np.asarray(pixels)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
