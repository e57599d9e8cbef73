"""Images and labels in memory, and what is computed from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

MAX_CHANNELS = 4
MAX_LABEL = 2**31 - 1


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """Labelled images.

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

    def __len__(self) -> int:
        """Return N."""
        return len(self.labels)

    def take(self, indices: np.ndarray) -> ImageArrays:
        """Return a copy of the rows ``indices`` (M,), in that order."""
        return ImageArrays(self.images[indices], self.labels[indices])


def check_images(name: str, images: np.ndarray) -> None:
    """Raise ``ValueError`` unless ``images`` is uint8 (N, H, W, C) and no axis is empty."""
    if images.dtype != np.uint8:
        raise ValueError(f"{name} is {images.dtype} {images.shape}, allowed is uint8 (0..255)")
    if images.ndim != 4 or 0 in images.shape or images.shape[3] > MAX_CHANNELS:
        raise ValueError(
            f"{name} has shape {images.shape}, allowed is (N, H, W, C) with C from 1 to "
            f"{MAX_CHANNELS} and no empty axis"
        )


def check_labels(name: str, labels: np.ndarray) -> None:
    """Raise ``ValueError`` unless ``labels`` is (N,), of an integer type and within 0..2^31-1."""
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{name} is {labels.dtype} {labels.shape}, allowed are integers")
    if labels.ndim != 1:
        raise ValueError(f"{name} has shape {labels.shape}, allowed is (N,)")
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


def fingerprint(*parts: ImageArrays | None) -> str:
    """Return the SHA-256 (hex) of all arrays: their shapes, dtypes and content, in order."""
    digest = hashlib.sha256()
    for part in parts:
        if part is None:
            digest.update(b"absent")
            continue
        for array in (part.images, part.labels):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
