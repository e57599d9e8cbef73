"""DeepLabV3: a segmentation network with dilated last stages and pooling at several rates."""

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.common.errors import InputError
from trainables.data import MaskedShape
from trainables.models._base import Network
from trainables.models._registry import PRETRAINED, Builder, register_model

RATES = (12, 24, 36)


class PixelNetwork(Network):
    """A network with features on a coarse grid, (N, D, h, w), and logits of every pixel."""

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits on the grid, (N, K, h, w)."""
        return super().classify(features.movedim(1, -1)).movedim(-1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of pixels, (N, K, H, W), interpolated bilinearly from the grid."""
        logits = self.classify(self.features(inputs))
        return F.interpolate(logits, inputs.shape[2:], mode="bilinear", align_corners=False)


def _torchvision(module: str) -> Any:
    # Imported only when a network is built, because it takes a second.
    return importlib.import_module(f"torchvision.models.{module}")


def _dilate(stage: nn.Module, rate: int, first: int) -> None:
    """Replace a stage's stride by dilation, as torchvision does.

    ``first`` is the dilation of the first 3x3 convolution, ``rate`` that of the others.
    """
    entry = True
    for module in stage.modules():
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
            if module.kernel_size == (3, 3):
                spread = first if entry else rate
                module.dilation = module.padding = (spread, spread)
                entry = False


def _resnet(name: str, pretrained: bool) -> Any:
    """Return a ResNet with an output stride of 8, with ImageNet weights if ``pretrained``."""
    bottlenecks = name != "resnet34"
    dilated = [False, True, True] if bottlenecks else None
    models = importlib.import_module("torchvision.models")
    network = models.get_model(name, weights=None, replace_stride_with_dilation=dilated)
    if not bottlenecks:  # torchvision does not dilate basic blocks.
        _dilate(network.layer3, 2, 1)
        _dilate(network.layer4, 4, 2)
    if pretrained:
        network.load_state_dict(_stored_weights(name, models.get_model_weights(name)))
    return network


def _stored_weights(name: str, published: Any) -> dict[str, Tensor]:
    """Return torchvision's ImageNet weights from their downloaded file."""
    url = published["IMAGENET1K_V1"].url
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        raise InputError(
            f"pretrained weights of {name}: {path} does not exist; download {url} there, or remove "
            f"{PRETRAINED}"
        )
    try:
        found: dict[str, Tensor] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise InputError(f"pretrained weights of {name}: {path} cannot be read: {text}") from error
    return found


def _deeplabv3(
    num_classes: int, shape: MaskedShape, backbone: str, pretrained: bool
) -> PixelNetwork:
    """Return DeepLabV3 (Chen et al. 2017) with torchvision's head, rates 12, 24 and 36."""
    network = _resnet(backbone, pretrained)
    width = network.fc.in_features
    layers = [module for name, module in network.named_children() if name not in ("avgpool", "fc")]
    *head, last = _torchvision("segmentation.deeplabv3").DeepLabHead(width, num_classes, RATES)
    return PixelNetwork(nn.Sequential(*layers, *head), nn.Linear(last.weight.shape[1], num_classes))


for _name in ("resnet34", "resnet50", "resnet101"):
    for _ending, _pretrained in (("", False), (PRETRAINED, True)):
        _builder: Builder = partial(_deeplabv3, backbone=_name, pretrained=_pretrained)
        register_model(f"deeplabv3-{_name}{_ending}", takes=MaskedShape)(_builder)


def _stage(inputs: int, width: int, stride: int, blocks: int) -> nn.Sequential:
    block = _torchvision("resnet").BasicBlock
    shortcut = None
    if stride > 1:
        convolution = nn.Conv2d(inputs, width, 1, stride=stride, bias=False)
        shortcut = nn.Sequential(convolution, nn.BatchNorm2d(width))
    others = (block(width, width) for _ in range(blocks - 1))
    return nn.Sequential(block(inputs, width, stride, shortcut), *others)


WIDTHS, HEAD, SMALL_RATES = (32, 64, 96), 64, (3, 6, 9)


@register_model("deeplabv3-small", takes=MaskedShape)
def deeplabv3_small(num_classes: int, shape: MaskedShape) -> PixelNetwork:
    """Return a DeepLabV3 of 0.7 million weights, for a CPU and images of a few hundred pixels.

    It is from no paper: five narrow residual blocks with an output stride of 8, and smaller rates.
    """
    entry, middle, last = WIDTHS
    stem = nn.Sequential(
        nn.Conv2d(3, entry, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(entry),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, ceil_mode=True),
    )
    stages = [_stage(entry, entry, 1, 1), _stage(entry, middle, 2, 2), _stage(middle, last, 2, 2)]
    _dilate(stages[2], 2, 1)
    head = _torchvision("segmentation.deeplabv3").ASPP(last, SMALL_RATES, HEAD)
    return PixelNetwork(nn.Sequential(stem, *stages, head), nn.Linear(HEAD, num_classes))
