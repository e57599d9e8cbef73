import zlib
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from trainables.data import ImageShape, InputShape, MaskedShape, TextShape
from trainables.models import Network, build_model
from trainables.models._blocks import basic_block
from trainables.models.densenet import densenet
from trainables.models.resnet import bottleneck_block, preresnet, resnet, resnet_cifar
from trainables.models.wide_resnet import _biased, _paper, wide_resnet_post

Make = Callable[[int, InputShape], Network]
SMALL, LARGE, MASKED = ImageShape(2, 8), ImageShape(2, 64), MaskedShape((20, 28))


def named(name: str) -> Make:
    return lambda classes, shape: build_model(name, classes, shape)


# Made by the code of 2026-11, whose networks have the parameters of the papers' (test_models.py).
OUTPUTS: dict[str, tuple[Make, InputShape, list[float]]] = {
    "convnet": (named("convnet"), SMALL, [0.639346868, 1.374087076, 0.6152113427]),
    "basic": (
        partial(resnet, block=basic_block, expansion=1, counts=(1, 2, 1, 1)),
        SMALL,
        [6665.315788, 20777.77353, 24266.64876],
    ),
    "bottleneck": (
        partial(resnet, block=bottleneck_block, expansion=4, counts=(1, 1, 1, 1)),
        SMALL,
        [-1767.196305, 5417.651568, 12902.59489],
    ),
    "tiny-imagenet": (
        partial(resnet, block=basic_block, expansion=1, counts=(1, 1, 1, 1)),
        LARGE,
        [-52.33739927, -7.354145451, 178.1266467],
    ),
    "cifar": (partial(resnet_cifar, blocks=2), SMALL, [-635.6495452, -1654.56445, -441.1931461]),
    "stochastic depth": (
        partial(resnet_cifar, blocks=2, last_survival=0.5),
        SMALL,
        [-101.5689677, -250.467428, -47.23784992],
    ),
    "preresnet": (partial(preresnet, blocks=2), SMALL, [-29.04447224, 105.397349, -141.9876907]),
    "wide, of the paper": (
        partial(_paper, blocks=2, factor=1),
        SMALL,
        [-62.75627078, -299.4677825, -265.2569827],
    ),
    "wide, with biases": (
        partial(_biased, blocks=2, factor=1),
        SMALL,
        [-433.3115261, -2064.626289, -1830.254864],
    ),
    "wide, post-activation": (
        partial(wide_resnet_post, blocks=1, factor=2),
        SMALL,
        [-66.85131411, 8.647399702, 238.643732],
    ),
    "dense": (
        partial(densenet, counts=(2, 2, 1), growth=4, first=8, bottleneck=False),
        SMALL,
        [-0.02941298669, 0.07916705882, 0.783423417],
    ),
    "dense, bottlenecks": (
        partial(densenet, counts=(2, 2, 1), growth=4, first=8, bottleneck=True),
        SMALL,
        [-0.07941720223, 1.187310744, 2.088676357],
    ),
    "gpool-cnn": (named("gpool-cnn"), TextShape(30, 30), [2.187419256, 2.533456621, -0.1309446006]),
    "deeplabv3-small": (named("deeplabv3-small"), MASKED, [-39524.54045, 40389.10757, 20798.96892]),
}


def wave(count: int, name: str) -> Tensor:
    return (torch.arange(count, dtype=torch.float64) * 0.7 + zlib.crc32(name.encode()) % 1000).sin()


@torch.no_grad()
def filled(network: Network) -> Network:
    """Give every weight and statistic a value that follows from its name and its place."""
    for name, value in network.double().state_dict().items():
        if value.is_floating_point():
            found = wave(value.numel(), name).view_as(value)
            scale = (2 / value[0].numel()) ** 0.5
            value.copy_(found * scale if value.ndim > 1 else 1 + found / 2)
    return network.eval()


def inputs_of(shape: InputShape) -> Tensor:
    if isinstance(shape, TextShape):
        return torch.arange(60).view(2, 30) * 7 % 30
    blank = shape.blank(torch.device("cpu"))
    return wave(blank.numel(), "images").view_as(blank)


@pytest.mark.full
@torch.no_grad()
@pytest.mark.parametrize("name", OUTPUTS)
def test_stored_weights_give_the_outputs_that_they_gave(name: str) -> None:
    make, shape, expected = OUTPUTS[name]
    logits = filled(make(3, shape))(inputs_of(shape))
    # Places weigh differently, so that none can take another's.
    found = (logits * wave(logits.numel(), "weights").view_as(logits)).transpose(0, 1).flatten(1)
    assert found.sum(1).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "dilations", "parameters"),
    [
        ("small", {1: 8, 2: 3, 3: 1, 6: 1, 9: 1}, 662051),
        ("resnet34", {1: 16, 2: 12, 4: 5, 12: 1, 24: 1, 36: 1}, 26007619),
        ("resnet50", {1: 9, 2: 6, 4: 2, 12: 1, 24: 1, 36: 1}, 39634243),
    ],
)
def test_the_last_stages_are_dilated_instead_of_strided(name, dilations, parameters):
    with torch.device("meta"):
        network = build_model(f"deeplabv3-{name}", 3, MASKED)
    found = [
        module.dilation[0]
        for module in network.modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3)
    ]
    assert {rate: found.count(rate) for rate in sorted(set(found))} == dilations
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
