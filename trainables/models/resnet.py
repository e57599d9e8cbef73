"""Residual networks for small images: the wide-feature form and He et al.'s CIFAR family.

Two different networks are called ResNet-110. ``resnet110`` is the bottleneck network [3, 4, 26, 3]
with 45.9 M parameters of the focal-calibration, MbLS and AURC code; ``resnet110-cifar`` is the one
with 1.7 M parameters of He et al. (2016a, section 4.2), which Guo et al. (2017) and the
class-wise-loss-scaling paper calibrate.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.models._base import Network
from trainables.models._blocks import (
    BlockMaker,
    Residual,
    assemble,
    basic_block,
    basic_branch,
    convolution,
    norm_relu,
    pooled,
    projection,
    stages,
    stem,
)
from trainables.models._registry import ImageShape, register_model

EXPANSION = 4
TINY_IMAGENET_SIZE = 64
LAST_SURVIVAL = 0.5


class StochasticResidual(Residual):
    """A residual block that is skipped at random in training (Huang et al. 2016, eq. 2 and 5).

    The branch is computed with probability ``survival`` in training and weighted with it in
    evaluation. One draw holds for the whole batch. It comes from torch's global CPU generator on
    every device, so that a skipped branch costs nothing and nothing waits for the device.

    Args:
        branch: See ``Residual``.
        shortcut: See ``Residual``.
        survival: Probability that the branch is kept, in (0, 1].

    Raises:
        ValueError: If ``survival`` is outside its range.
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module, survival: float) -> None:
        super().__init__(branch, shortcut)
        if not 0 < survival <= 1:
            raise ValueError(f"survival={survival} is outside (0, 1]")
        self.survival = survival

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H', W')."""
        if not self.training:
            return F.relu(self.shortcut(images) + self.survival * self.branch(images))
        if torch.rand((), device="cpu").item() < self.survival:
            return super().forward(images)
        return F.relu(self.shortcut(images))


class PaddedShortcut(nn.Module):
    """A shortcut without parameters: every ``stride``-th pixel, new channels filled with zeros.

    This is option A of He et al. (2016a), which their CIFAR networks use.
    """

    def __init__(self, stride: int, new_channels: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = new_channels

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C + new_channels, H / stride, W / stride)."""
        kept = images[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, 0, self.new_channels))


def bottleneck_block(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return 1x1, 3x3 and 1x1 convolutions around a quarter of the output channels."""
    width = outputs // EXPANSION
    branch = nn.Sequential(
        convolution(inputs, width, 1),
        *norm_relu(width),
        convolution(width, width, 3, stride),
        *norm_relu(width),
        convolution(width, outputs, 1),
        nn.BatchNorm2d(outputs),
    )
    return Residual(branch, projection(inputs, outputs, stride))


def resnet(
    num_classes: int,
    shape: ImageShape,
    *,
    block: BlockMaker,
    expansion: int,
    counts: tuple[int, int, int, int],
) -> Network:
    """Build a four-stage network with a 3x3 stem and no pooling before the stages.

    For 64x64 images the last feature map is pooled to 2x2 instead of 1x1, so that the classifier
    sees four times as many features: the released Tiny-ImageNet form of the focal-calibration and
    MbLS code. Every other size is pooled to 1x1, the CIFAR form.

    Args:
        num_classes: K.
        shape: Channels and size of the images.
        block: ``basic_block`` or ``bottleneck_block``.
        expansion: Output channels of a block over its width: 1 or 4.
        counts: Blocks of each stage.
    """
    widths = [width * expansion for width in (64, 128, 256, 512)]
    layers: list[nn.Module] = [stem(shape.channels, 64), stages(64, widths, counts, block)]
    if shape.size == TINY_IMAGENET_SIZE:
        layers += [nn.AvgPool2d(4), nn.Flatten()]
        return assemble(layers, 4 * widths[-1], num_classes)
    return assemble([*layers, pooled()], widths[-1], num_classes)


def padded_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the identity where shapes agree, else ``PaddedShortcut``."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return PaddedShortcut(stride, outputs - inputs)


def resnet_cifar(
    num_classes: int, shape: ImageShape, *, blocks: int, last_survival: float = 1.0
) -> Network:
    """Build He et al.'s CIFAR network of depth ``6 * blocks + 2``: widths 16, 32, 64.

    Args:
        num_classes: K.
        shape: Channels and size of the images.
        blocks: Basic blocks of each of the three stages.
        last_survival: Probability of keeping the last block's branch in training; it falls linearly
            from 1 at the stem (Huang et al. 2016, eq. 4). 1 means no stochastic depth.
    """
    total, made = 3 * blocks, 0

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        nonlocal made
        made += 1
        branch = basic_branch(inputs, outputs, stride)
        shortcut = padded_shortcut(inputs, outputs, stride)
        if last_survival == 1:
            return Residual(branch, shortcut)
        return StochasticResidual(branch, shortcut, 1 - made / total * (1 - last_survival))

    body = stages(16, (16, 32, 64), (blocks,) * 3, block)
    return assemble([stem(shape.channels, 16), body, pooled()], 64, num_classes)


_basic = partial(resnet, block=basic_block, expansion=1)
_bottleneck = partial(resnet, block=bottleneck_block, expansion=EXPANSION)

register_model("resnet18")(partial(_basic, counts=(2, 2, 2, 2)))
register_model("resnet50")(partial(_bottleneck, counts=(3, 4, 6, 3)))
register_model("resnet101")(partial(_bottleneck, counts=(3, 4, 23, 3)))
register_model("resnet110")(partial(_bottleneck, counts=(3, 4, 26, 3)))
register_model("resnet8")(partial(resnet_cifar, blocks=1))
register_model("resnet20")(partial(resnet_cifar, blocks=3))
register_model("resnet110-cifar")(partial(resnet_cifar, blocks=18))
register_model("resnet110-sd")(partial(resnet_cifar, blocks=18, last_survival=LAST_SURVIVAL))
