"""Wide residual networks (Zagoruyko & Komodakis 2016) as in the papers' codes.

``wrn-26-10`` and ``wrn-28-10`` both have four blocks per group; depth 26 does not count the
projections. ``wrn-26-10`` (focal-calibration code) has post-activation blocks and normalised
projections. ``wrn-28-10`` (AURC code) has pre-activation blocks, and every convolution has a bias.
``wrn-16-4`` and ``wrn-32`` have the paper's own form.
"""

from functools import partial

from torch import nn

from trainables.data import ImageShape
from trainables.models._base import GlobalAverage, Network, register_model
from trainables.models._blocks import (
    BlockMaker,
    PreActivation,
    assemble,
    basic_block,
    convolution,
    norm_relu,
    stages,
    stem,
)


def wide_block(
    inputs: int, outputs: int, stride: int, *, bias: bool, from_activated: bool
) -> nn.Module:
    """Return a pre-activation block of two 3x3 convolutions, without dropout."""
    branch = nn.Sequential(
        convolution(inputs, outputs, 3, stride, bias),
        *norm_relu(outputs),
        convolution(outputs, outputs, 3, bias=bias),
    )
    return PreActivation(branch, inputs, outputs, stride, bias, from_activated)


def wide_resnet(
    num_classes: int,
    shape: ImageShape,
    *,
    blocks: int,
    factor: int,
    block: BlockMaker,
    bias: bool = False,
) -> Network:
    """Build the pre-activation form; its depth, including projections, is ``6 * blocks + 4``.

    ``bias`` says whether the first convolution has a bias.
    """
    widths = 16 * factor, 32 * factor, 64 * factor
    layers = [
        convolution(shape.channels, 16, 3, bias=bias),
        stages(16, widths, (blocks,) * 3, block),
        *norm_relu(widths[-1]),
        GlobalAverage(),
    ]
    return assemble(layers, widths[-1], num_classes)


def wide_resnet_post(num_classes: int, shape: ImageShape, *, blocks: int, factor: int) -> Network:
    """Build the post-activation form; its depth, without projections, is ``6 * blocks + 2``."""
    widths = 16 * factor, 32 * factor, 64 * factor
    body = stages(16, widths, (blocks,) * 3, basic_block)
    return assemble([stem(shape.channels, 16), body, GlobalAverage()], widths[-1], num_classes)


_paper = partial(wide_resnet, block=partial(wide_block, bias=False, from_activated=True))
_biased = partial(
    wide_resnet, block=partial(wide_block, bias=True, from_activated=False), bias=True
)

register_model("wrn-16-4")(partial(_paper, blocks=2, factor=4))
register_model("wrn-26-10")(partial(wide_resnet_post, blocks=4, factor=10))
register_model("wrn-28-10")(partial(_biased, blocks=4, factor=10))
# The 32 layers of Kull et al. (2019), whose logits the class-wise-loss-scaling paper uses, do not
# include projections: there are five blocks per group, and the widening factor is 10.
register_model("wrn-32")(partial(_paper, blocks=5, factor=10))
