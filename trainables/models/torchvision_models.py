"""Any classification network of torchvision that ends in one linear layer."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from trainables.models._base import Network
from trainables.models._blocks import cannot_take, split_at_classifier
from trainables.models._registry import ImageShape, register_library, unknown_model

WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": True}


@register_library("torchvision")
def torchvision_model(name: str, num_classes: int, shape: ImageShape) -> Network:
    """Build one of torchvision's networks with random weights, as ``torchvision:NAME``.

    These are made for images of about 224 pixels: ``torchvision:resnet50`` halves the image twice
    before its first block and is not the ``resnet50`` of the papers. Pretrained weights are offered
    through ``timm:NAME@pretrained``.

    Args:
        name: A name of ``torchvision.models.list_models()``.
        num_classes: K.
        shape: Channels and size of the images.

    Raises:
        InputError: If torchvision has no such network, it cannot take such images, or it does not
            end in one linear layer.
    """
    # torchvision is imported here because importing it takes about a second.
    models = importlib.import_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise unknown_model(f"torchvision:{name}", [f"torchvision:{entry}" for entry in known])
    try:
        model = models.get_model(
            name, weights=None, num_classes=num_classes, **_arguments(name, shape.size)
        )
    except (ValueError, AssertionError, RuntimeError) as error:
        raise cannot_take(f"torchvision:{name}", shape, error) from error
    _take_channels(model, shape.channels)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    last = linear[-1] if linear and linear[-1].out_features == num_classes else None
    return split_at_classifier(f"torchvision:{name}", model, last, shape)


def _arguments(name: str, size: int) -> dict[str, Any]:
    if name in ("googlenet", "inception_v3"):
        return WITHOUT_AUXILIARY
    if name.startswith("vit"):
        return {"image_size": size}
    if name.startswith("maxvit"):
        return {"input_size": (size, size)}
    return {}


def _take_channels(model: nn.Module, channels: int) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            if module.in_channels != channels:
                model.set_submodule(name, _with_channels(module, channels))
            return


def _with_channels(old: nn.Conv2d, channels: int) -> nn.Conv2d:
    new = nn.Conv2d(
        channels,
        old.out_channels,
        kernel_size=old.kernel_size,  # type: ignore[arg-type]
        stride=old.stride,  # type: ignore[arg-type]
        padding=old.padding,  # type: ignore[arg-type]
        bias=old.bias is not None,
    )
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new
