"""Any network of timm whose classifier is one linear layer, as ``timm:NAME``."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from trainables.models._base import Network
from trainables.models._blocks import cannot_take, split_at_classifier
from trainables.models._registry import ImageShape, register_library, unknown_model

PRETRAINED = "@pretrained"


@register_library("timm")
def timm_model(name: str, num_classes: int, shape: ImageShape) -> Network:
    """Build one of timm's networks, with random weights unless the name ends in ``@pretrained``.

    Networks made for one image size (vision transformers) are built for the size at hand; with
    pretrained weights, their position embeddings are interpolated by timm. The classifier is always
    new. Images are normalised by the data set, not by the network's own statistics.

    Args:
        name: A name from ``timm.list_models()``, such as ``vit_small_patch16_224``, perhaps with
            ``@pretrained``; a tag of pretrained weights may follow the name after a dot.
        num_classes: K.
        shape: Channels and size of the images.

    Raises:
        InputError: If timm has no such network, it cannot take such images, its classifier is not
            one linear layer, or its pretrained weights cannot be had.
    """
    base = name.removesuffix(PRETRAINED)
    # timm takes two seconds to import, which a command that builds no network should not wait for.
    timm = importlib.import_module("timm")
    if not timm.is_model(base.partition(".")[0]):
        raise unknown_model(f"timm:{base}", [f"timm:{known}" for known in timm.list_models()])
    try:
        model = _create(timm, base, base != name, num_classes, shape)
    except (ValueError, TypeError, AssertionError, RuntimeError, OSError) as error:
        raise cannot_take(f"timm:{name}", shape, error) from error
    return split_at_classifier(f"timm:{name}", model, model.get_classifier(), shape)


def _create(
    timm: ModuleType, name: str, pretrained: bool, num_classes: int, shape: ImageShape
) -> Any:
    settings = timm.get_pretrained_cfg(name)
    fixed = settings is not None and settings.fixed_input_size
    size = {"img_size": shape.size} if fixed else {}
    return timm.create_model(
        name, pretrained=pretrained, num_classes=num_classes, in_chans=shape.channels, **size
    )
