"""Random crop and horizontal flip of a whole batch at once, on whatever device it is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 4


def draw_crop_flip(count: int, generator: torch.Generator) -> Tensor:
    """Draw one view an image: (3, count), int64, of row offset, column offset and flip (0 or 1).

    Offsets are uniform on 0..8, flips are fair. They are drawn where ``generator`` lives: the same
    seed of a CPU generator gives the same views whatever device the images are on.
    """
    options = {"generator": generator, "device": generator.device}
    offsets = torch.randint(0, 2 * PADDING + 1, (2, count), **options)  # type: ignore[call-overload]
    flips = torch.randint(0, 2, (1, count), **options)  # type: ignore[call-overload]
    return torch.cat((offsets, flips))


def crop_flip(images: Tensor, views: Tensor) -> Tensor:
    """Pad by four black pixels a side, crop to the old size and flip left to right.

    The same views as torchvision's ``RandomCrop(size, padding=4)`` then ``RandomHorizontalFlip()``.

    Args:
        images: (B, C, H, W), uint8.
        views: (3, B), as ``draw_crop_flip`` gives them, on the same device.

    Returns:
        (B, C, H, W), uint8.
    """
    count, channels, height, width = images.shape
    padded = F.pad(images, (PADDING,) * 4)
    top, left, flip = views.unsqueeze(2)
    column = torch.arange(width, device=images.device)
    columns = left + torch.where(flip == 1, width - 1 - column, column)
    rows = top + torch.arange(height, device=images.device)
    pixels = rows.unsqueeze(2) * padded.shape[3] + columns.unsqueeze(1)
    flat = pixels.view(count, 1, -1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, flat).view(images.shape)
