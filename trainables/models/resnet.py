"""Residual networks for small images: wide features, He et al.'s CIFAR family, pre-activation.

Two networks are called ResNet-110. ``resnet110`` is the bottleneck network [3, 4, 26, 3] with
45.9 M parameters of the focal-calibration, MbLS and AURC code; ``resnet110-cifar`` has 1.7 M
parameters and is from He et al. (2016a, section 4.2); Guo et al. (2017) and the
class-wise-loss-scaling paper calibrate it.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.common.fields import check_number
from trainables.data import ImageShape
from trainables.models._base import GlobalAverage, Network, register_model
from trainables.models._blocks import (
    EXPANSION,
    BlockMaker,
    PreActivation,
    Residual,
    assemble,
    basic_block,
    basic_branch,
    bottleneck_branch,
    convolution,
    norm_relu,
    projection,
    stages,
    stem,
)

TINY_IMAGENET_SIZE = 64
LAST_SURVIVAL = 0.5


class StochasticResidual(Residual):
    """A residual block that is skipped at random in training (Huang et al. 2016, eq. 2 and 5).

    The branch is computed with probability ``survival`` in training, and multiplied by ``survival``
    in evaluation. There is one draw per batch, from torch's global CPU generator: a skipped branch
    takes no time, and the draw does not wait for the device.
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module, survival: float) -> None:
        super().__init__(branch, shortcut)
        self.survival = check_number("survival", survival, 0, 1, open_low=True)

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return F.relu(self.shortcut(images) + self.survival * self.branch(images))
        if torch.rand((), device="cpu").item() < self.survival:
            return super().forward(images)
        return F.relu(self.shortcut(images))


class PaddedShortcut(nn.Module):
    """A shortcut without parameters: every ``stride``-th pixel, and zeros in new channels.

    This is option A of He et al. (2016a), as in their CIFAR networks.
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
    """Return a bottleneck residual block, with a projection if the shape changes."""
    branch = nn.Sequential(*bottleneck_branch(inputs, outputs, stride), nn.BatchNorm2d(outputs))
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

    For 64x64 images the last feature map is pooled to 2x2 instead of 1x1, which gives four times
    as many features, as in the focal-calibration and MbLS code for Tiny-ImageNet. Other sizes are
    pooled to 1x1. ``expansion`` is a block's output channels divided by its width; ``counts`` are
    the numbers of blocks of the stages.
    """
    widths = [width * expansion for width in (64, 128, 256, 512)]
    layers: list[nn.Module] = [stem(shape.channels, 64), stages(64, widths, counts, block)]
    if shape.size == TINY_IMAGENET_SIZE:
        layers += [nn.AvgPool2d(4), nn.Flatten()]
        return assemble(layers, 4 * widths[-1], num_classes)
    return assemble([*layers, GlobalAverage()], widths[-1], num_classes)


def resnet_cifar(
    num_classes: int, shape: ImageShape, *, blocks: int, last_survival: float = 1.0
) -> Network:
    """Build He et al.'s CIFAR network of depth ``6 * blocks + 2``: widths 16, 32, 64.

    ``last_survival`` is the probability of keeping the last block's branch in training; the
    probability falls linearly from 1 at the stem (Huang et al. 2016, eq. 4). 1 means that there is
    no stochastic depth.
    """
    total, made = 3 * blocks, 0

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        nonlocal made
        made += 1
        branch = basic_branch(inputs, outputs, stride)
        same = stride == 1 and inputs == outputs
        shortcut = nn.Identity() if same else PaddedShortcut(stride, outputs - inputs)
        if last_survival == 1:
            return Residual(branch, shortcut)
        return StochasticResidual(branch, shortcut, 1 - made / total * (1 - last_survival))

    body = stages(16, (16, 32, 64), (blocks,) * 3, block)
    return assemble([stem(shape.channels, 16), body, GlobalAverage()], 64, num_classes)


def preactivation_bottleneck(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return a pre-activation bottleneck; the input of its projection is not normalised."""
    branch = nn.Sequential(*bottleneck_branch(inputs, outputs, stride))
    return PreActivation(branch, inputs, outputs, stride)


def preresnet(num_classes: int, shape: ImageShape, *, blocks: int) -> Network:
    """Build the pre-activation form (He et al. 2016b) with bottlenecks: ``9 * blocks + 2`` layers.

    Names are those of the AURC paper's released code, which computes the number of blocks as for
    basic blocks but builds bottlenecks. So ``preresnet56`` has 83 layers, and ``preresnet110`` has
    164 layers and is He et al.'s PreResNet-164. The stages' widths are 64, 128 and 256.
    """
    widths = (16 * EXPANSION, 32 * EXPANSION, 64 * EXPANSION)
    layers = [
        convolution(shape.channels, 16, 3),
        stages(16, widths, (blocks,) * 3, preactivation_bottleneck),
        *norm_relu(widths[-1]),
        GlobalAverage(),
    ]
    return assemble(layers, widths[-1], num_classes)


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
register_model("preresnet56")(partial(preresnet, blocks=9))
register_model("preresnet110")(partial(preresnet, blocks=18))
