"""Images with a mask of classes: stored as uint8 (N, H, W, 4), the mask as the last channel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trainables.common.fields import check_choice, check_count
from trainables.common.later import F, Generator, Tensor, torch
from trainables.data._images import ImageBatcher, crop_grid
from trainables.data._inputs import Inputs, InputShape, Pixels, move
from trainables.data._rows import RowArrays

MASK_AUGMENTATIONS = ("none", "crop-flip", "scale-crop-flip", "crop-flip-light")
VOID = 255  # Mask value of pixels that are ignored.
MASK_OUTSIDE = 254  # Mask value outside of an image that is smaller than the stored size.
IGNORED = -100  # Target that losses ignore.
SAMPLED = 2**16  # About how many pixels, in all rows together, have stored predictions.
HELD_PIXELS = 2**19  # Maximum number of pixels in a batch of an evaluation, unless it is one row.
SCALES = (0.5, 2.0)
LIGHT = 0.2  # Largest change of contrast, as a share, and of brightness, in standard deviations.


@dataclass(frozen=True)
class MaskedShape(InputShape):
    """The height and width of stored images with masks; networks also see crops of them."""

    kind: ClassVar[str] = "images with masks"

    size: tuple[int, int]

    def __post_init__(self) -> None:
        for side in self.size:
            check_count("size", side)

    def blank(self, device: torch.device) -> Tensor:
        return torch.zeros(1, 3, *self.size, device=device)


@dataclass(frozen=True)
class MaskedImages(Inputs, kind="images-with-masks"):
    """RGB images, each with a mask that has a class per pixel.

    Smaller images are stored in the upper left corner, and the rest of their mask is
    ``MASK_OUTSIDE``; evaluation shows them at their own size. 255 in a mask is void.

    Attributes:
        size: Height and width of stored images, in pixels: the largest of each.
        mean: Subtracted from each channel, on the scale 0..1.
        std: Divisor of each channel, after the mean is subtracted.
        crop: Side, in pixels, of the square crops that training uses; 0 for ``size``.
        augmentation: Default augmentation of training, one of ``MASK_AUGMENTATIONS``.
    """

    dtype: ClassVar[np.dtype] = np.dtype(np.uint8)
    seen_as = MaskedShape
    views = MASK_AUGMENTATIONS

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: int = 0
    augmentation: str = "scale-crop-flip"

    def __post_init__(self) -> None:
        check_count("crop", self.crop, 0)
        check_choice("augmentation", self.augmentation, self.views)
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean={self.mean}, std={self.std} must be three numbers, std above 0")

    @property
    def row(self) -> tuple[int, int, int]:
        return (*self.size, 4)

    @property
    def shape(self) -> MaskedShape:
        return MaskedShape(self.size)

    def check(self, values: np.ndarray) -> None:
        """Raise ``ValueError`` unless values are uint8 (N, H, W, 4), or (N, H, W, 3) unmasked."""
        if values.dtype != self.dtype or values.ndim != 4 or values.shape[3] not in (3, 4):
            raise ValueError(
                f"{self.kind}: expected {self.dtype} (N, H, W, 4), or (N, H, W, 3) without masks, "
                f"got {values.dtype} {values.shape}"
            )

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> MaskedBatcher:
        self.check(values)
        if values.shape[3] == 3:
            blank = np.full((*values.shape[:3], 1), VOID, self.dtype)
            values = np.concatenate((values, blank), axis=3)
        return MaskedBatcher(values, self, device)

    def pixels(self, rows: RowArrays) -> Pixels:
        return sample_pixels(rows.values[..., 3])


def sample_pixels(masks: np.ndarray) -> Pixels:
    """Return the same number of labelled pixels of each mask (N, H, W), about ``SAMPLED`` in all.

    A mask's labelled pixels, line by line, are cut into runs, and one pixel of each run is drawn,
    with a fixed seed. A mask with too few labelled pixels contributes all of them.
    """
    wanted = max(1, SAMPLED // max(len(masks), 1))
    found = [_spread(mask.ravel(), wanted, seed) for seed, mask in enumerate(masks)]
    rows = np.repeat(np.arange(len(masks)), [len(places) for places in found])
    places = np.concatenate(found) if found else np.empty(0, np.int64)
    labels = masks.reshape(len(masks), -1)[rows, places].astype(np.int64)
    return Pixels(*map(torch.from_numpy, (labels, rows, places)))


def _spread(mask: np.ndarray, wanted: int, seed: int) -> np.ndarray:
    labelled = np.flatnonzero(mask < MASK_OUTSIDE)
    ends = np.arange(min(wanted, len(labelled)) + 1) * len(labelled) // max(wanted, 1)
    if wanted > len(labelled):
        return labelled
    draws = np.random.Philox(key=seed).random_raw(wanted) >> np.uint64(11)
    offsets = (draws / 2.0**53 * np.diff(ends)).astype(np.int64)
    return labelled[ends[:-1] + offsets]


class MaskedBatcher(ImageBatcher):
    """Yields batches of images with masks, uint8 (B, 4, H, W), and makes views of both."""

    def __init__(
        self, values: np.ndarray, inputs: MaskedImages, device: torch.device | str
    ) -> None:
        super().__init__(values, inputs.mean, inputs.std, device)
        self._crop = (inputs.crop, inputs.crop) if inputs.crop else inputs.size
        self.at_once = max(1, HELD_PIXELS // int(np.prod(values.shape[1:3])))

    def plain(self, batch: Tensor) -> Tensor:
        """Return ``(images / 255 - mean) / std`` as float32, (B, 3, H, W), without the masks."""
        return batch[:, :3].float().mul_(self._scale).add_(self._shift)

    def view(self, batch: Tensor, augmentation: str, generator: Generator) -> Tensor:
        """Return the images of ``example``, (B, 3, h, w)."""
        return self.example(batch, batch, augmentation, generator)[0]

    def example(
        self, batch: Tensor, labels: Tensor, augmentation: str, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Return random views of images, (B, 3, h, w), and of their masks, int64 (B, h, w).

        ``crop-flip`` is a random crop, mirrored with a chance of one half; ``scale-crop-flip``
        scales the image by 0.5 to 2 before; ``crop-flip-light`` is ``crop-flip`` and a random
        change of contrast and brightness. Void pixels, and pixels of a crop outside of the image,
        are ``IGNORED`` in masks.
        """
        check_choice("augmentation", augmentation, MASK_AUGMENTATIONS)
        images, masks = self.plain(batch), batch[:, 3:]
        if augmentation == "none":
            return images, _targets(masks.squeeze(1))
        scaled = augmentation.startswith("scale")
        windows = draw_windows(image_sizes(masks.squeeze(1)), self._crop, scaled, generator)
        grid, _, _ = crop_grid(windows, self._crop, batch.shape[2:])
        images = F.grid_sample(images, grid, align_corners=False)
        # Shifted by one, so that 0 means outside of the image.
        shifted = (masks.float() + 1) * (masks < MASK_OUTSIDE)
        found = F.grid_sample(shifted, grid, mode="nearest", align_corners=False).long().squeeze(1)
        if augmentation.endswith("light"):
            images = _relit(images, generator)
        return images, torch.where(found > 0, found - 1, IGNORED)

    def whole(self, batch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images at their own size, (b, 3, h, w), and their masks, int64 (b, h, w).

        Successive images of one size are yielded together.
        """
        images, masks = self.plain(batch), batch[:, 3]
        sizes = image_sizes(masks).tolist()
        first = 0
        for last in range(1, len(sizes) + 1):
            if last == len(sizes) or sizes[last] != sizes[first]:
                height, width = sizes[first]
                yield (
                    images[first:last, :, :height, :width],
                    _targets(masks[first:last, :height, :width]),
                )
                first = last


def _targets(masks: Tensor) -> Tensor:
    return torch.where(masks < MASK_OUTSIDE, masks.long(), IGNORED)


def image_sizes(masks: Tensor) -> Tensor:
    """Return height and width of each image, (B, 2), int64, from masks (B, H, W)."""
    inside = masks != MASK_OUTSIDE
    return torch.stack((inside.any(2).sum(1), inside.any(1).sum(1)), dim=1)


def draw_windows(
    sizes: Tensor, crop: tuple[int, int], scaled: bool, generator: Generator
) -> Tensor:
    """Draw a crop of each image of ``sizes`` (B, 2): top, left, height, width and flip, (5, B).

    A crop is in pixels of the image and may reach beyond it. If ``scaled``, it is ``crop`` divided
    by a scale whose logarithm is uniform between those of 0.5 and 2. Places are uniform among those
    that show as much of the image as possible, in whole pixels unless ``scaled``. Random numbers
    are drawn on the generator's device; the rest is computed on that of ``sizes``, so that nothing
    waits for a device.
    """
    draws = torch.rand(4, len(sizes), generator=generator, device=generator.device)
    scale, *places, flip = move(draws, sizes.device)
    low, high = map(math.log, SCALES)
    scale = (low + (high - low) * scale).exp() if scaled else torch.ones_like(scale)
    sides = move(torch.tensor(crop), sizes.device).unsqueeze(1) / scale
    room = sizes.T - sides
    offsets = room.clamp(max=0) + (room.abs() + (0 if scaled else 1)) * torch.stack(places)
    offsets = offsets if scaled else torch.minimum(offsets.floor(), room.clamp(min=0))
    return torch.cat((offsets, sides, (flip < 0.5).float().unsqueeze(0)))


def _relit(images: Tensor, generator: Generator) -> Tensor:
    draws = (2 * torch.rand(2, len(images), 1, 1, 1, generator=generator) - 1) * LIGHT
    contrast, brightness = move(draws, images.device)
    return images * (1 + contrast) + brightness
