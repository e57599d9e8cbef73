"""Images on the device that trains: stored once as uint8, cut into batches there."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from trainables.data._arrays import check_images
from trainables.data._crop_flip import crop_flip, draw_crop_flip
from trainables.data._info import AUGMENTATIONS, DatasetInfo


class ImageBatcher:
    """Gives normalised batches of a data set that lies on the device as uint8.

    On the CPU nothing is copied: a memory-mapped array stays mapped, so all trials of a node share
    one copy. On another device the images are copied there once. A step costs a gather and a few
    batched operations; nothing waits for the device. Not for data that exceed the device's memory.

    Args:
        images: (N, H, W, C), uint8; must not change afterwards.
        info: Gives mean and standard deviation of the channels.
        device: Where batches are made.

    Raises:
        ValueError: If ``images`` has another form, or another number of channels than ``info``.
    """

    def __init__(
        self, images: np.ndarray, info: DatasetInfo, device: torch.device | str = "cpu"
    ) -> None:
        check_images("images", images)
        if images.shape[3] != info.channels:
            raise ValueError(f"images have {images.shape[3]} channels, expected {info.channels}")
        self.device = torch.device(device)
        self._images = self._place(_as_tensor(images))
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
        batch = self._images.index_select(0, self._move(indices))
        return batch.permute(0, 3, 1, 2).contiguous() if self.device.type == "cpu" else batch

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
        return self._augment(self.raw(indices), kind, generator)

    def augment(self, images: Tensor, seed: int, kind: str = "crop-flip") -> Tensor:
        """Return random views of ``images``, uint8 (B, C, H, W), normalised, float32.

        The views depend on ``seed`` and B alone, whatever the device.

        Raises:
            ValueError: If ``kind`` is unknown.
        """
        return self._augment(images, kind, torch.Generator().manual_seed(seed))

    def normalise(self, images: Tensor) -> Tensor:
        """Return ``(images / 255 - mean) / std`` as float32 for uint8 (B, C, H, W)."""
        return images.float().mul_(self._scale).add_(self._shift)

    def _augment(self, images: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        if kind not in AUGMENTATIONS:
            raise ValueError(f"augmentation={kind!r} is not one of {', '.join(AUGMENTATIONS)}")
        if kind == "none":
            return self.normalise(images)
        views = draw_crop_flip(len(images), generator)
        return self.normalise(crop_flip(images, self._move(views)))

    def _place(self, images: Tensor) -> Tensor:
        # A copy is due anyway elsewhere, so the planes are put in the networks' order with it.
        if self.device.type == "cpu":
            return images
        return images.to(self.device).permute(0, 3, 1, 2).contiguous()

    def _move(self, values: Tensor) -> Tensor:
        if values.device.type == "cpu" and self.device.type == "cuda":
            values = values.pin_memory()
        return values.to(self.device, non_blocking=True)


def _as_tensor(images: np.ndarray) -> Tensor:
    """Return a view of ``images``; the warning about read-only memory is moot, no one writes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        return torch.from_numpy(np.ascontiguousarray(images))
