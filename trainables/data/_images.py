"""Images as inputs: stored once as uint8 (N, H, W, C), shown to networks normalised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from trainables.common.archives import ArrayHeader
from trainables.common.fields import check_choice, check_count
from trainables.common.later import F, Generator, Tensor, torch
from trainables.data._inputs import Batcher, DatasetInfo, Inputs, InputShape, move
from trainables.data._rows import Rows

IMAGE_AUGMENTATIONS = ("none", "crop-flip", "resized-crop-flip")
MAX_CHANNELS = 4
PADDING = 4
# As usual for ImageNet: share of the image's area, ratio of a crop's sides, and number of tries.
AREAS, RATIOS, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


@dataclass(frozen=True)
class ImageShape(InputShape):
    """The shape of images, from which a network is built.

    Attributes:
        channels: C.
        size: Side length in pixels; networks are built for squares.
    """

    kind: ClassVar[str] = "images"

    channels: int
    size: int

    def __post_init__(self) -> None:
        check_count("channels", self.channels)
        check_count("size", self.size)

    def blank(self, device: torch.device) -> Tensor:
        return torch.zeros(1, self.channels, self.size, self.size, device=device)


@dataclass(frozen=True)
class Images(Inputs, kind="images"):
    """Images of one size.

    Attributes:
        size: Height and width, in pixels.
        channels: C.
        mean: Subtracted from each channel, on the scale 0..1.
        std: Divisor of each channel, after the mean is subtracted.
        augmentation: Default augmentation of training, one of ``IMAGE_AUGMENTATIONS``.
    """

    dtype: ClassVar[np.dtype] = np.dtype(np.uint8)
    seen_as = ImageShape
    views: ClassVar[tuple[str, ...]] = IMAGE_AUGMENTATIONS

    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: str

    def __post_init__(self) -> None:
        if min(self.size) < 1 or self.channels < 1:
            raise ValueError(f"size={self.size}, channels={self.channels} must be at least 1")
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ValueError(f"{key}={values} must have {self.channels} entries")
        if min(self.std) <= 0:
            raise ValueError(f"std={self.std} is outside (0, inf)")
        check_choice("augmentation", self.augmentation, IMAGE_AUGMENTATIONS)

    @property
    def row(self) -> tuple[int, int, int]:
        return (*self.size, self.channels)

    @property
    def shape(self) -> ImageShape:
        return ImageShape(self.channels, self.size[0])

    def check(self, values: np.ndarray) -> None:
        """Raise ``ValueError`` unless values are uint8 (N, H, W, C); any H and W are allowed."""
        check_images("images", values)
        if values.shape[3] != self.channels:
            raise ValueError(f"images have {values.shape[3]} channels, expected {self.channels}")

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> Batcher:
        self.check(values)
        return ImageBatcher(values, self.mean, self.std, device)


class ImageBatcher(Batcher):
    """Yields batches of images, uint8 (B, C, H, W), and makes normalised views of them."""

    def __init__(
        self,
        values: np.ndarray,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device | str,
    ) -> None:
        super().__init__(values, device)
        means, deviations = (torch.tensor(each, dtype=torch.float64) for each in (mean, std))
        self._scale = (1 / (255 * deviations)).float().view(1, -1, 1, 1).to(self.device)
        # On a GPU, `channels_last` is fastest for convolutions; `plain` converts format and type.
        on_cpu = self.device.type == "cpu"
        self._format = torch.preserve_format if on_cpu else torch.channels_last
        self._shift = (-means / deviations).float().view(1, -1, 1, 1).to(self.device)

    def arrange(self, batch: Tensor) -> Tensor:
        """Return images (B, H, W, C) as (B, C, H, W), contiguous."""
        return batch.permute(0, 3, 1, 2).contiguous()

    def plain(self, batch: Tensor) -> Tensor:
        """Return ``(images / 255 - mean) / std`` as float32 for uint8 (B, C, H, W)."""
        return (
            batch.to(torch.float32, memory_format=self._format).mul_(self._scale).add_(self._shift)
        )

    def view(self, batch: Tensor, augmentation: str, generator: Generator) -> Tensor:
        """Return normalised images, randomly cropped and flipped unless ``augmentation=none``.

        ``crop-flip`` pads images by 4 pixels and crops them to their size; ``resized-crop-flip``
        resizes crops of random size and shape to the image's size.
        """
        check_choice("augmentation", augmentation, IMAGE_AUGMENTATIONS)
        if augmentation == "none":
            return self.plain(batch)
        if augmentation == "resized-crop-flip":
            height, width = batch.shape[2:]
            crops = draw_resized_crops(len(batch), height, width, generator)
            return self.plain(resized_crop_flip(batch, move(crops, self.device)))
        views = draw_crop_flip(len(batch), generator)
        return self.plain(crop_flip(batch, views))


@dataclass(frozen=True)
class ImagesWithMargin(Images, kind="images-with-margin"):
    """Images stored larger than networks see them.

    Networks see a part of height and width ``shown``: a random one with ``crop-flip``, else the
    centre (with ``resized-crop-flip``, that of the resized crop).
    """

    shown: tuple[int, int]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(1 <= shown <= size for shown, size in zip(self.shown, self.size, strict=True)):
            raise ValueError(f"shown={self.shown} is outside [1, {self.size}]")

    @property
    def shape(self) -> ImageShape:
        return ImageShape(self.channels, self.shown[0])

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> Batcher:
        self.check(values)
        return _MarginBatcher(values, self, device)


class _MarginBatcher(ImageBatcher):
    def __init__(
        self, values: np.ndarray, images: ImagesWithMargin, device: torch.device | str
    ) -> None:
        super().__init__(values, images.mean, images.std, device)
        self._shown = images.shown

    def plain(self, batch: Tensor) -> Tensor:
        height, width = self._shown
        top, left = ((batch.shape[2] - height) // 2, (batch.shape[3] - width) // 2)
        return super().plain(batch[:, :, top : top + height, left : left + width])

    def view(self, batch: Tensor, augmentation: str, generator: Generator) -> Tensor:
        if augmentation != "crop-flip":
            return super().view(batch, augmentation, generator)
        margin = min(size - shown for size, shown in zip(batch.shape[2:], self._shown, strict=True))
        views = draw_crop_flip(len(batch), generator, margin + 1)
        return self.plain(cut_flip(batch, views, *self._shown))


def draw_crop_flip(count: int, generator: Generator, places: int = 2 * PADDING + 1) -> Tensor:
    """Draw row offset, column offset and flip (0 or 1) of each image: (3, count), int64.

    Offsets are uniform on 0..places - 1, flips are fair. All are drawn on the generator's device,
    so that a CPU generator with the same seed gives the same views for images on any device.
    """
    options = {"generator": generator, "device": generator.device}
    offsets = torch.randint(0, places, (2, count), **options)  # type: ignore[call-overload]
    flips = torch.randint(0, 2, (1, count), **options)  # type: ignore[call-overload]
    return torch.cat((offsets, flips))


def crop_flip(images: Tensor, views: Tensor) -> Tensor:
    """Pad each side by four black pixels, crop to the old size, and flip if drawn.

    Equivalent to torchvision's ``RandomCrop(size, padding=4)``, then ``RandomHorizontalFlip()``.

    Args:
        images: (B, C, H, W), uint8, like the result.
        views: (3, B), from ``draw_crop_flip``.
    """
    return cut_flip(F.pad(images, (PADDING,) * 4), views, *images.shape[2:])


def cut_flip(images: Tensor, views: Tensor, height: int, width: int) -> Tensor:
    """Cut (B, C, height, width) out of images at the offsets of their views; flip if drawn."""
    count, channels = images.shape[:2]
    top, left, flip = views.unsqueeze(2)
    column = torch.arange(width, device=views.device)
    columns = left + torch.where(flip == 1, width - 1 - column, column)
    rows = (top + torch.arange(height, device=views.device)) * images.shape[3]
    # Indices are computed on the views' device, the CPU: on a GPU, each step would launch a kernel.
    rows, columns = move(torch.cat((rows, columns), dim=1), images.device).split((height, width), 1)
    pixels = rows.unsqueeze(2) + columns.unsqueeze(1)
    flat = pixels.view(count, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, flat).view(count, channels, height, width)


def draw_resized_crops(
    count: int, height: int | Tensor, width: int | Tensor, generator: Generator
) -> Tensor:
    """Draw top, left, height, width and flip (0 or 1) of each image's crop: (5, count), float32.

    As in torchvision's ``RandomResizedCrop``, areas and the logarithms of ratios are uniform. The
    first of ten tries that fits into the image is used, or else the largest central crop with an
    allowed ratio. ``height`` and ``width`` of the images are one number for all, or tensors
    (count,) on the generator's device.
    """
    device = generator.device
    draws = torch.rand(3, TRIES, count, generator=generator, device=device)
    areas, ratios, places = draws.unbind()
    area = (AREAS[0] + (AREAS[1] - AREAS[0]) * areas) * height * width
    low, high = map(math.log, RATIOS)
    ratio = (low + (high - low) * ratios).exp()
    whole = [torch.as_tensor(side, device=device).expand(count) for side in (height, width)]
    limits = torch.stack(whole)
    sides = torch.stack(((area / ratio).sqrt().round(), (area * ratio).sqrt().round()))
    fits = ((sides >= 1) & (sides <= limits.unsqueeze(1))).all(dim=0)
    first = fits.int().argmax(dim=0).expand(2, 1, -1)
    found, largest = fits.any(dim=0), torch.minimum(limits, (limits.flip(0) * RATIOS[1]).round())
    sides = torch.where(found, sides.gather(1, first).squeeze(1), largest)
    room = limits - sides
    offsets = torch.where(found, (places[:2] * (room + 1)).floor(), (room / 2).floor())
    return torch.cat((offsets, sides, (places[2:3] < 0.5).float()))


def resized_crop_flip(images: Tensor, crops: Tensor) -> Tensor:
    """Resize a crop of each image to the old size, bilinearly, and flip it if drawn.

    Args:
        images: (B, C, H, W), uint8.
        crops: (5, B), from ``draw_resized_crops``, on the same device.

    Returns:
        (B, C, H, W), float32, in [0, 255].
    """
    size = images.shape[2:]
    grid, scale, shift = crop_grid(crops, size, size)
    # Clamping repeats the outermost pixels, so that nothing outside the crop is visible.
    pixel = 1 / move(torch.tensor(size).flip(0), images.device)
    inside = (scale - pixel).view(-1, 1, 1, 2)
    middle = shift.view(-1, 1, 1, 2)
    grid = torch.clamp(grid, middle - inside, middle + inside)
    return F.grid_sample(images.float(), grid, align_corners=False)


def crop_grid(
    crops: Tensor, shown: Sequence[int], size: torch.Size
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a grid (B, h, w, 2) for ``grid_sample``, and sides and centres (B, 2) of crops.

    The sides are shares of the image's. Coordinates are columns before rows, from the image's
    centre in units of half the image.

    Args:
        crops: Top, left, height, width and flip (0 or 1) of each crop, (5, B), in pixels.
        shown: Height h and width w of the crops after resizing.
        size: Height and width of the images.
    """
    whole = move(torch.tensor(size).flip(0), crops.device)
    start, sides = crops[:2].T.flip(1), crops[2:4].T.flip(1)
    scale, shift = sides / whole, (2 * start + sides) / whole - 1
    signs = torch.stack((1 - 2 * crops[4], torch.ones_like(crops[4])), dim=1)
    theta = torch.cat((torch.diag_embed(scale * signs), shift.unsqueeze(2)), dim=2)
    return F.affine_grid(theta, [len(theta), 1, *shown], align_corners=False), scale, shift


def check_images(name: str, images: np.ndarray | ArrayHeader) -> None:
    """Raise ``ValueError`` unless ``images`` is uint8 (N, H, W, C), C at most 4, and not empty."""
    if images.dtype != np.uint8:
        raise ValueError(f"{name}: expected uint8 (0..255), got {images.dtype} {images.shape}")
    if images.ndim != 4 or 0 in images.shape or images.shape[3] > MAX_CHANNELS:
        raise ValueError(
            f"{name}: expected shape (N, H, W, C) with C from 1 to {MAX_CHANNELS} and no empty "
            f"axis, got {images.shape}"
        )


def images_info(
    name: str, source: Path | str, classes: tuple[str, ...], train: Rows, test_rule: str
) -> DatasetInfo:
    """Return the constants of a user's own images.

    ``test_rule`` says where test and validation rows come from. If it is empty, there is no test
    set, and images are not normalised by their statistics, which would include test images.
    """
    height, width, channels = train.shape
    mean, std = (0.5,) * channels, (0.5,) * channels
    constants = "normalised to [-1, 1], because statistics of all images would include test images"
    if test_rule:
        mean, std = image_statistics(train.read(0, len(train)))
        constants = "mean and standard deviation of the training images"
    return DatasetInfo(
        name=name,
        classes=classes,
        inputs=Images((height, width), channels, mean, std, augmentation="crop-flip"),
        split_rule=test_rule or "no test images: test and validation are stratified draws",
        source=f"{source}; {constants}",
    )


def image_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, on the scale 0..1.

    They are computed from the histogram of the 256 values, so the order of summation does not
    matter. A constant channel has a standard deviation of 1, so that it can be a divisor.
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
