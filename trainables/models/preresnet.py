"""Pre-activation residual networks for small images (He et al. 2016b)."""

from __future__ import annotations

from functools import partial

from torch import nn

from trainables.models._base import Network
from trainables.models._blocks import (
    PreActivation,
    assemble,
    convolution,
    norm_relu,
    pooled,
    stages,
)
from trainables.models._registry import ImageShape, register_model

EXPANSION = 4


def preactivation_bottleneck(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return a pre-activation bottleneck; its projection starts at the raw input, unnormalised."""
    width = outputs // EXPANSION
    branch = nn.Sequential(
        convolution(inputs, width, 1),
        *norm_relu(width),
        convolution(width, width, 3, stride),
        *norm_relu(width),
        convolution(width, outputs, 1),
    )
    same = stride == 1 and inputs == outputs
    shortcut = None if same else convolution(inputs, outputs, 1, stride)
    return PreActivation(inputs, branch, shortcut, from_activated=False)


def preresnet(num_classes: int, shape: ImageShape, *, blocks: int) -> Network:
    """Build the bottleneck form with widths 64, 128 and 256: ``9 * blocks + 2`` layers.

    The names follow the AURC paper's released code, which divides the depth in the name by 6, as
    for basic blocks, but builds bottlenecks: its 56 has 83 layers, and its 110 has 164 and is the
    network that He et al. (2016b) call PreResNet-164.

    Args:
        num_classes: K.
        shape: Channels and size of the images.
        blocks: Blocks of each of the three stages.
    """
    widths = (16 * EXPANSION, 32 * EXPANSION, 64 * EXPANSION)
    layers = [
        convolution(shape.channels, 16, 3),
        stages(16, widths, (blocks,) * 3, preactivation_bottleneck),
        *norm_relu(widths[-1]),
        pooled(),
    ]
    return assemble(layers, widths[-1], num_classes)


register_model("preresnet56")(partial(preresnet, blocks=9))
register_model("preresnet110")(partial(preresnet, blocks=18))
