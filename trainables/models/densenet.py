"""Densely connected networks for small images (Huang et al. 2017)."""

from functools import partial

import torch
from torch import Tensor, nn

from trainables.common.errors import InputError
from trainables.data import ImageShape
from trainables.models._base import GlobalAverage, Network, register_model
from trainables.models._blocks import assemble, convolution, norm_relu


class DenseLayer(nn.Module):
    """Appends ``growth`` new channels to its input.

    Args:
        inputs: Channels of the input.
        growth: Channels added.
        bottleneck: Whether a 1x1 convolution to ``4 * growth`` channels comes first.
    """

    def __init__(self, inputs: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        layers = norm_relu(inputs)
        if bottleneck:
            layers += [convolution(inputs, 4 * growth, 1), *norm_relu(4 * growth)]
            inputs = 4 * growth
        self.layers = nn.Sequential(*layers, convolution(inputs, growth, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C + growth, H, W)."""
        return torch.cat([images, self.layers(images)], dim=1)


def transition(inputs: int, outputs: int) -> nn.Sequential:
    """Return the layers between two dense blocks: a 1x1 convolution and 2x2 average pooling."""
    return nn.Sequential(*norm_relu(inputs), convolution(inputs, outputs, 1), nn.AvgPool2d(2))


def densenet(
    num_classes: int,
    shape: ImageShape,
    *,
    counts: tuple[int, ...],
    growth: int,
    first: int,
    bottleneck: bool,
) -> Network:
    """Build a dense network with a 3x3 stem and no pooling before the first block.

    The stem has ``first`` channels; ``counts`` are the numbers of layers of the dense blocks.
    ``bottleneck`` is the BC form: bottleneck layers, and transitions that halve the channels. Too
    small images raise ``InputError``.
    """
    smallest = 2 ** (len(counts) - 1)
    if shape.size < smallest:
        raise InputError(
            f"images of size {shape.size} are too small: this network halves them "
            f"{len(counts) - 1} times and needs at least {smallest}"
        )
    layers: list[nn.Module] = [convolution(shape.channels, first, 3)]
    channels = first
    for position, count in enumerate(counts):
        if position:
            outputs = channels // 2 if bottleneck else channels
            layers.append(transition(channels, outputs))
            channels = outputs
        block = [DenseLayer(channels + i * growth, growth, bottleneck) for i in range(count)]
        layers.append(nn.Sequential(*block))
        channels += count * growth
    return assemble([*layers, *norm_relu(channels), GlobalAverage()], channels, num_classes)


_bc = partial(densenet, bottleneck=True)

register_model("densenet40")(
    partial(densenet, counts=(12, 12, 12), growth=12, first=16, bottleneck=False)
)
register_model("densenet121")(partial(_bc, counts=(6, 12, 24, 16), growth=32, first=64))
register_model("densenet161")(partial(_bc, counts=(6, 12, 36, 24), growth=48, first=96))
