"""The networks of timm and torchvision whose classifier is a linear layer."""

import importlib
import json
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from trainables.common.errors import InputError
from trainables.common.hub import download
from trainables.data import ImageShape
from trainables.models._base import Network
from trainables.models._blocks import cannot_take, split_at_classifier
from trainables.models._registry import (
    PRETRAINED,
    UNTRAINED,
    hub_address,
    register_model,
    unknown_model,
)


@register_model("timm:")
def timm_model(name: str, num_classes: int, shape: ImageShape) -> Network:
    """Build one of timm's networks, with random weights unless the name ends with ``@pretrained``.

    Networks for one image size (vision transformers) are built for the images' size; if they are
    pretrained, images are resized to the size of their training. The classifier is new, except that
    a network pretrained for as many classes keeps its own. Images are normalised with the
    statistics of the data set, not of the pretraining. ``name`` is from ``timm.list_models()``,
    such as ``vit_small_patch16_224``, perhaps with a tag of pretrained weights after a dot.
    """
    base = name.removesuffix(PRETRAINED).removesuffix(UNTRAINED)
    # Imported only when a network is built, because it takes two seconds.
    timm = importlib.import_module("timm")
    if not timm.is_model(base.partition(".")[0]):
        raise unknown_model(f"timm:{base}", [f"timm:{known}" for known in timm.list_models()])
    title, weights = f"timm:{name}", name.endswith(PRETRAINED)
    return _timm_network(title, base, num_classes, shape, weights, resizes=base != name)


@register_model("hf:")
@register_model("hf-hub:")
def hub_model(name: str, num_classes: int, shape: ImageShape) -> Network:
    """Build a network of timm from a repository of the Hugging Face Hub, ``ORG/NAME@COMMIT``.

    Only ``config.json``, which names the network, and ``model.safetensors``, its weights, are
    downloaded; nothing is unpickled and no code of the repository runs. See ``timm_model`` for
    images and the classifier.
    """
    address = hub_address(f"hf:{name}")
    weights = not name.endswith(UNTRAINED)
    wanted = ["config.json", *(["model.safetensors"] if weights else [])]
    folder = download(address, wanted, f"model 'hf:{name}'")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    timm = importlib.import_module("timm")
    if not timm.is_model(str(config.get("architecture"))):
        raise InputError(f"model 'hf:{name}': config.json does not name a network of timm")
    place = f"local-dir:{folder}"
    return _timm_network(f"hf:{name}", place, num_classes, shape, weights, resizes=True)


def _timm_network(
    title: str, base: str, num_classes: int, shape: ImageShape, weights: bool, resizes: bool
) -> Network:
    """Build a network of timm; if ``resizes``, a network for one image size resizes its inputs."""
    timm = importlib.import_module("timm")
    form = {"num_classes": num_classes, "in_chans": shape.channels}
    try:
        if not resizes:
            settings = timm.get_pretrained_cfg(base)
            form |= {"img_size": shape.size} if settings and settings.fixed_input_size else {}
        model = timm.create_model(base, pretrained=weights, **form)
    except (ValueError, TypeError, AssertionError, RuntimeError, OSError) as error:
        raise cannot_take(title, shape, error) from error
    classifier, made_for = model.get_classifier(), model.pretrained_cfg
    if resizes and made_for.get("fixed_input_size"):
        model = Resized(model, made_for["input_size"][-1])
    return split_at_classifier(title, model, classifier, shape)


class Resized(nn.Module):
    """Resizes images bilinearly to the one ``size``, in pixels, that a network accepts."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's output for the resized images."""
        size = (self.size, self.size)
        return self.network(F.interpolate(images, size, mode="bilinear", antialias=True))


@register_model("torchvision:")
def torchvision_model(name: str, num_classes: int, shape: ImageShape) -> Network:
    """Build one of ``torchvision.models.list_models()`` with random weights.

    These are for images of about 224 pixels: ``torchvision:resnet50`` halves the image twice before
    its first block and differs from the ``resnet50`` of the papers. For pretrained weights use
    ``timm:NAME@pretrained``.
    """
    # Imported only when a network is built, because it takes about a second.
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
        return {"aux_logits": False, "init_weights": True}
    if name.startswith("vit"):
        return {"image_size": size}
    if name.startswith("maxvit"):
        return {"input_size": (size, size)}
    return {}


def _take_channels(model: nn.Module, channels: int) -> None:
    """Replace the first convolution if it does not have this number of input channels."""
    name, old = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
    if old.in_channels != channels:
        sizes = old.kernel_size, old.stride, old.padding, old.dilation
        form: Any = *sizes, old.groups, old.bias is not None
        new = nn.Conv2d(channels, old.out_channels, *form)
        nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
        model.set_submodule(name, new)
