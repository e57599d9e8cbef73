"""Images and labels in memory, and what is computed from them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from trainables.archives import ArrayHeader

if TYPE_CHECKING:
    from hashlib import _Hash

MAX_CHANNELS = 4
MAX_LABEL = 2**31 - 1
BLOCK_BYTES = 64 * 2**20


class LabelledImages(ABC):
    """Images with labels, in memory or still in their files; read in blocks, so of any number.

    Attributes:
        labels: (N,), int64, every entry at least 0.
    """

    labels: np.ndarray

    def __len__(self) -> int:
        """Return N."""
        return len(self.labels)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Return height, width and channels of every image."""

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the arrays in memory."""
        return (self.labels,)

    @abstractmethod
    def take(self, indices: np.ndarray) -> Self:
        """Return the rows ``indices`` (M,), in that order."""

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the images of the rows from ``start`` to before ``stop``, uint8 (M, H, W, C).

        Raises:
            InputError: If an image cannot be read.
        """

    @abstractmethod
    def update(self, digest: _Hash) -> None:
        """Feed all content to a hash."""

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all images in order, uint8 (M, H, W, C), about 64 MiB at a time."""
        step = max(1, BLOCK_BYTES // int(np.prod(self.shape)))
        for start in range(0, len(self), step):
            yield self.read(start, min(start + step, len(self)))


@dataclass(frozen=True, eq=False)
class ImageArrays(LabelledImages):
    """Labelled images in memory.

    Attributes:
        images: (N, H, W, C), uint8, 0..255, C from 1 to 4; may be memory-mapped.
        labels: (N,), int64, every entry at least 0.

    Raises:
        ValueError: If dtype or shape differ from that, the lengths differ or a label is negative.
    """

    images: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        """Check shapes, dtypes and labels."""
        check_images("images", self.images)
        check_labels("labels", self.labels)
        if self.labels.dtype != np.int64:
            raise ValueError(f"labels is {self.labels.dtype}, allowed is int64")
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images but {len(self.labels)} labels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return height, width and channels of every image."""
        _, height, width, channels = self.images.shape
        return height, width, channels

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return images and labels."""
        return self.images, self.labels

    def take(self, indices: np.ndarray) -> ImageArrays:
        """Return a copy of the rows ``indices`` (M,), in that order."""
        return ImageArrays(self.images[indices], self.labels[indices])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return a view of the rows from ``start`` to before ``stop``."""
        return self.images[start:stop]

    def update(self, digest: _Hash) -> None:
        """Feed shapes, dtypes and content to a hash."""
        for array in self.arrays:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)


def check_images(name: str, images: np.ndarray | ArrayHeader) -> None:
    """Raise ``ValueError`` unless ``images`` is uint8 (N, H, W, C) and no axis is empty."""
    if images.dtype != np.uint8:
        raise ValueError(f"{name} is {images.dtype} {images.shape}, allowed is uint8 (0..255)")
    if images.ndim != 4 or 0 in images.shape or images.shape[3] > MAX_CHANNELS:
        raise ValueError(
            f"{name} has shape {images.shape}, allowed is (N, H, W, C) with C from 1 to "
            f"{MAX_CHANNELS} and no empty axis"
        )


def check_label_form(name: str, labels: np.ndarray | ArrayHeader) -> None:
    """Raise ``ValueError`` unless ``labels`` is (N,), of an integer type."""
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{name} is {labels.dtype} {labels.shape}, allowed are integers")
    if labels.ndim != 1:
        raise ValueError(f"{name} has shape {labels.shape}, allowed is (N,)")


def check_labels(name: str, labels: np.ndarray) -> None:
    """Raise ``ValueError`` unless ``labels`` is (N,), of an integer type and within 0..2^31-1."""
    check_label_form(name, labels)
    for label in (labels.min(), labels.max()) if len(labels) else ():
        if not 0 <= label <= MAX_LABEL:
            raise ValueError(f"{name} holds {label}, allowed is 0 to {MAX_LABEL}")


def image_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, on the scale 0..1.

    They come from the exact histogram of the 256 values, so they do not depend on the order of
    summation. A channel that never varies gets a standard deviation of 1: it can be divided by.
    """
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.shape[3]):
        share = np.bincount(images[..., channel].ravel(), minlength=256)
        share = share / share.sum()
        mean = float(share @ values)
        means.append(round(mean, 6))
        deviations.append(round(float(np.sqrt(share @ (values - mean) ** 2)), 6) or 1.0)
    return tuple(means), tuple(deviations)


def fingerprint(*parts: LabelledImages | None) -> str:
    """Return the SHA-256 (hex) of the content of all parts, in order."""
    digest = hashlib.sha256()
    for part in parts:
        if part is None:
            digest.update(b"absent")
        else:
            part.update(digest)
    return digest.hexdigest()
