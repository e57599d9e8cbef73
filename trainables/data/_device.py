"""Batches of images on the device that trains, of a data set stored once as uint8."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from trainables.data._arrays import check_images
from trainables.data._crop_flip import crop_flip, draw_crop_flip
from trainables.data._info import AUGMENTATIONS, DatasetInfo
from trainables.data._placement import ResidentImages, StreamedImages, fits, move


class ImageBatcher:
    """Gives normalised batches of a data set that is stored once, as uint8.

    On the CPU nothing is copied: a memory-mapped array stays mapped, so all trials of a node share
    one copy. On another device the images are copied there once, and a step costs a gather and a
    few batched operations; images that would take more than half of its free memory stay on the
    host, from where a thread brings the batches. Nothing waits for the device, and where the images
    lie changes no batch.

    Args:
        images: (N, H, W, C), uint8; must not change afterwards.
        info: Gives mean and standard deviation of the channels.
        device: Where batches are made.
        resident: Whether the images lie on the device; None to decide by its free memory.

    Raises:
        ValueError: If ``images`` has another form, or another number of channels than ``info``.
    """

    def __init__(
        self,
        images: np.ndarray,
        info: DatasetInfo,
        device: torch.device | str = "cpu",
        resident: bool | None = None,
    ) -> None:
        check_images("images", images)
        if images.shape[3] != info.channels:
            raise ValueError(f"images have {images.shape[3]} channels, expected {info.channels}")
        self.device = torch.device(device)
        self.resident = fits(images.nbytes, self.device) if resident is None else resident
        place = ResidentImages if self.resident else StreamedImages
        self._images: ResidentImages | StreamedImages = place(_as_tensor(images), self.device)
        std = torch.tensor(info.std, dtype=torch.float64)
        mean = torch.tensor(info.mean, dtype=torch.float64)
        self._scale = (1 / (255 * std)).float().view(1, -1, 1, 1).to(self.device)
        self._shift = (-mean / std).float().view(1, -1, 1, 1).to(self.device)

    def __len__(self) -> int:
        """Return N."""
        return len(self._images)

    def raw(self, indices: Tensor) -> Tensor:
        """Return the images ``indices`` (B,), int64, as uint8 (B, C, H, W), contiguous.

        Indices on the CPU for images elsewhere are copied over without waiting.
        """
        return self._images.rows(indices)

    def batches(self, order: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the images ``order`` (M,), int64, on the CPU, as ``raw`` gives them.

        Args:
            order: Indices of the images.
            size: Images of every batch but perhaps the last.
        """
        return self._images.batches(order, size)

    def plain(self, indices: Tensor) -> Tensor:
        """Return the images ``indices`` (B,) normalised, float32 (B, C, H, W)."""
        return self.normalise(self.raw(indices))

    def augmented(self, indices: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        """Return random views of the images ``indices`` (B,) normalised, float32 (B, C, H, W).

        Args:
            indices: (B,), int64.
            kind: ``none`` or ``crop-flip`` (pad 4, random crop, fair horizontal flip).
            generator: Draws the views. One on the CPU gives the same views for every device.

        Raises:
            ValueError: If ``kind`` is unknown.
        """
        return self.view(self.raw(indices), kind, generator)

    def augment(self, images: Tensor, seed: int, kind: str = "crop-flip") -> Tensor:
        """Return random views of ``images``, uint8 (B, C, H, W), normalised, float32.

        The views depend on ``seed`` and B alone, whatever the device.

        Raises:
            ValueError: If ``kind`` is unknown.
        """
        return self.view(images, kind, torch.Generator().manual_seed(seed))

    def normalise(self, images: Tensor) -> Tensor:
        """Return ``(images / 255 - mean) / std`` as float32 for uint8 (B, C, H, W)."""
        return images.float().mul_(self._scale).add_(self._shift)

    def view(self, images: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        """Return random views of ``images``, uint8 (B, C, H, W), normalised, as ``augmented``."""
        if kind not in AUGMENTATIONS:
            raise ValueError(f"augmentation={kind!r} is not one of {', '.join(AUGMENTATIONS)}")
        if kind == "none":
            return self.normalise(images)
        views = draw_crop_flip(len(images), generator)
        return self.normalise(crop_flip(images, move(views, self.device)))


def _as_tensor(images: np.ndarray) -> Tensor:
    """Return a view of ``images``; the warning about read-only memory is moot, no one writes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        return torch.from_numpy(np.ascontiguousarray(images))
