"""The networks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from trainables.common.errors import InputError, known_names
from trainables.common.fields import check_count
from trainables.common.hub import HubAddress
from trainables.common.registry import Catalogue
from trainables.data import ImageShape, InputShape

if TYPE_CHECKING:
    from trainables.models._base import Network

SHOWN = 32
PRETRAINED = "@pretrained"  # Ends names of networks that do not begin with random weights.
UNTRAINED = "@untrained"  # Ends names of the same networks with random weights; not for users.
HUB_MODELS = ("hf:", "hf-hub:")  # Networks in repositories of the Hugging Face Hub; one meaning.

Builder = Callable[..., "Network"]
MODELS: Catalogue[tuple[Builder, type[InputShape]]] = Catalogue(
    "model", "trainables.models", slow=True
)


def register_model(name: str, takes: type[InputShape] = ImageShape) -> Callable[[Builder], Builder]:
    """Return a decorator that makes a builder known under ``name``.

    Args:
        name: The network's name, or ``LIBRARY:`` for all names that begin so; what follows is then
            the builder's first argument.
        takes: What the builder is told of its inputs, after the number of classes.
    """

    def add(builder: Builder) -> Builder:
        MODELS.add(name, (builder, takes))
        return builder

    return add


def model_names(takes: type[InputShape] = InputShape) -> list[str]:
    """Return the names of our networks for such inputs, sorted; those of libraries work too."""
    return [
        name
        for name in MODELS.names()
        if issubclass(MODELS.outline(name)[1], takes) and not name.endswith(":")
    ]


def build_model(name: str, num_classes: int, shape: InputShape) -> Network:
    """Make a network with random weights from torch's global generator.

    Args:
        name: A name from ``model_names()``, ``timm:NAME``, ``timm:NAME@pretrained`` (weights from
            the network instead of random ones, but for the classifier), ``torchvision:NAME`` or
            ``hf:ORG/NAME@COMMIT``, which has weights too.
        num_classes: K.
        shape: What there is to know of the inputs, ``DatasetInfo.inputs.shape``.

    Raises:
        InputError: If there is no network of that name, or it cannot take such inputs.
        ValueError: If ``num_classes`` is below 1.
    """
    check_count("num_classes", num_classes)
    known = model_names()
    prefix, colon, rest = name.partition(":")
    if prefix + colon not in MODELS:
        libraries = [f"{key}NAME" for key in MODELS.names() if key.endswith(":")]
        raise unknown_model(name, [*known, *libraries])
    check_takes(name, type(shape))
    builder, _ = MODELS[prefix + colon]
    return builder(rest, num_classes, shape) if colon else builder(num_classes, shape)


def check_takes(name: str, shape: type[InputShape]) -> None:
    """Refuse inputs that the network of a known name does not take; ``InputShape`` is any."""
    _, takes = MODELS.outline("".join(name.partition(":")[:2]))
    if not issubclass(shape, takes) and shape is not InputShape:
        ours = ", ".join(model_names(shape)) or "there is none"
        raise InputError(
            f"model {name!r} takes {takes.kind}, the data are {shape.kind}; for those: {ours}"
        )


def begins_trained(name: str) -> bool:
    """Return True if a network begins with weights that were trained elsewhere."""
    return name.endswith(PRETRAINED) or name.startswith(HUB_MODELS)


def without_weights(name: str) -> str:
    """Return the name of a network of the same form whose weights need no download."""
    if name.startswith(HUB_MODELS):
        return f"{name}{UNTRAINED}"
    base = name.removesuffix(PRETRAINED)
    return f"{base}{UNTRAINED}" if base != name and base.startswith("timm:") else base


def hub_address(name: str) -> HubAddress:
    """Return the repository and the commit that the name of a network of the Hub has."""
    address = HubAddress.parse(name.partition(":")[2].removesuffix(UNTRAINED), f"model {name!r}")
    if not address.fixed or address.part:
        raise InputError(
            f"model {name!r}: weights of a branch may change; name a commit of 40 digits, "
            f"hf:{address.repo}@COMMIT, from the history on its page"
        )
    return address


@cache
def check_model(name: str) -> None:
    """Make sure that there is a network of that name, without memory for or download of weights."""
    if name.startswith(HUB_MODELS):
        hub_address(name)  # Its form is known after a download only.
    elif name not in model_names():
        import torch  # For networks of libraries only.

        with torch.device("meta"):
            build_model(without_weights(name), 10, ImageShape(3, 32))


def unknown_model(name: str, known: Sequence[str]) -> InputError:
    """Return the error for a name that is not in ``known``: near names, or a list where short."""
    listed = known_names(name, known, "models")
    if listed.startswith("there") and len(known) > SHOWN:
        first = [*known[:SHOWN], f"... ({len(known) - SHOWN} more)"]
        listed = known_names(name, first, "models")
    return InputError(f"unknown model {name!r}; {listed}")
