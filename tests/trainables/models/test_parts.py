import pytest
import torch

from trainables.data import ImageShape
from trainables.models import Network, build_model
from trainables.models._base import units
from trainables.models._blocks import Residual


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "count", "size"),
    [
        ("convnet", 4, 32),
        ("resnet8", 5, 32),
        ("resnet18", 6, 32),
        ("resnet18", 6, 64),
        ("wrn-16-4", 5, 32),
        ("preresnet56", 5, 32),
    ],
)
def test_blocks_one_after_the_other_are_the_extractor(name: str, count: int, size: int) -> None:
    network = build_model(name, 4, ImageShape(3, size)).eval()
    images = torch.randn(1, 3, size, size)
    blocks = network.blocks()
    assert len(blocks) == count
    value = images
    with torch.no_grad():
        for block in blocks:
            value = block(value)
        torch.testing.assert_close(value, network.features(images))
    assert not list(blocks[-1].parameters())
    assert all(list(block.parameters()) for block in blocks[:-1])
    pooling = {"GlobalAverage", "AdaptiveAvgPool2d", "AvgPool2d", "Flatten"}
    assert not pooling & {type(part).__name__ for block in blocks[:-1] for part in block}
    assert pooling >= {type(part).__name__ for part in blocks[-1]}


def test_an_extractor_of_nothing_but_pooling_is_one_block() -> None:
    network = Network(torch.nn.Sequential(torch.nn.Flatten()), torch.nn.Linear(4, 2))
    (block,) = network.blocks()
    assert [type(part).__name__ for part in block] == ["Flatten"]


@pytest.mark.parametrize("name", ["densenet40", "torchvision:resnet18"])
def test_other_networks_are_cut_without_change(name: str) -> None:
    network = build_model(name, 4, ImageShape(3, 32)).eval()
    value = images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for block in network.blocks():
            value = block(value)
        torch.testing.assert_close(value, network.features(images))


def test_dense_blocks_are_stages_and_dense_layers_blocks() -> None:
    extractor = build_model("densenet40", 4, ImageShape(3, 32)).extractor
    # The first convolution, three dense blocks and two transitions; 36 layers instead of blocks.
    assert len(units(extractor, "stage")) == 6
    assert len(units(extractor, "block")) == 39


@pytest.mark.parametrize(
    ("name", "stages", "blocks"), [("resnet18", 5, 9), ("wrn-16-4", 4, 7), ("preresnet56", 4, 28)]
)
def test_residual_blocks_are_opened_one_by_one(name: str, stages: int, blocks: int) -> None:
    extractor = build_model(name, 4, ImageShape(3, 32)).extractor
    assert len(units(extractor, "stage")) == stages  # With the first convolution.
    assert len(units(extractor, "block")) == blocks


def test_a_sequence_of_layers_with_a_block_among_them_is_opened() -> None:
    block = Residual(torch.nn.Conv2d(3, 3, 1), torch.nn.Identity())
    module = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), block))
    assert [len(units(module, kind)) for kind in ("stage", "block")] == [1, 2]


def test_normalisation_belongs_to_the_layer_before() -> None:
    extractor = build_model("convnet", 4, ImageShape(1, 8)).extractor
    kinds = [[type(part).__name__ for part in group] for group in units(extractor, "block")]
    assert kinds[0] == ["Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds[-1] == ["Conv2d", "BatchNorm2d", "ReLU", "AdaptiveAvgPool2d", "Flatten"]
