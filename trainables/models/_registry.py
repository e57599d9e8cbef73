"""The registry of networks."""

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
PRETRAINED = "@pretrained"  # Suffix of networks that start from trained weights.
UNTRAINED = "@untrained"  # Suffix of the same networks with random weights; not for users.
HUB_MODELS = ("hf:", "hf-hub:")  # Equivalent prefixes of networks on the Hugging Face Hub.
CLIP = "clip:"  # Prefix of image-text models, which only compute features.

Builder = Callable[..., "Network"]
MODELS: Catalogue[tuple[Builder, type[InputShape]]] = Catalogue(
    "model", "trainables.models", slow=True
)


def register_model(name: str, takes: type[InputShape] = ImageShape) -> Callable[[Builder], Builder]:
    """Return a decorator that registers a builder.

    Args:
        name: The network's name, or ``LIBRARY:`` for all names with this prefix; the rest of the
            name is then the builder's first argument.
        takes: Type of the builder's last argument, the form of the inputs.
    """

    def add(builder: Builder) -> Builder:
        MODELS.add(name, (builder, takes))
        return builder

    return add


def model_names(takes: type[InputShape] = InputShape) -> list[str]:
    """Return the sorted names of networks for a form of inputs, without those of libraries."""
    return [
        name
        for name in MODELS.names()
        if issubclass(MODELS.outline(name)[1], takes) and not name.endswith(":")
    ]


def build_model(name: str, num_classes: int, shape: InputShape) -> "Network":
    """Make a network; weights that are not pretrained are drawn from torch's global generator.

    Args:
        name: A name from ``model_names()``, ``timm:NAME`` or ``torchvision:NAME``; pretrained are
            names that end with ``@pretrained``, and ``hf:ORG/NAME@COMMIT`` (see ``timm_model`` for
            the classifier).
        num_classes: K.
        shape: The form of the inputs, ``DatasetInfo.inputs.shape``.
    """
    check_count("num_classes", num_classes)
    known = model_names()
    if name.startswith(CLIP):
        command = f"calsweep features extract {name} DATASET --out FOLDER"
        raise InputError(f"model {name!r} only computes features; use `{command}`")
    prefix, colon, rest = name.partition(":")
    if prefix + colon not in MODELS:
        libraries = [f"{key}NAME" for key in MODELS.names() if key.endswith(":")]
        raise unknown_model(name, [*known, *libraries])
    check_takes(name, type(shape))
    builder, _ = MODELS[prefix + colon]
    return builder(rest, num_classes, shape) if colon else builder(num_classes, shape)


def check_takes(name: str, shape: type[InputShape]) -> None:
    """Raise ``InputError`` if a network does not accept a form of inputs.

    The base class ``InputShape`` is accepted by every network.
    """
    _, takes = MODELS.outline("".join(name.partition(":")[:2]))
    if not issubclass(shape, takes) and shape is not InputShape:
        hint = f"models for {shape.kind}: {', '.join(model_names(shape)) or 'none'}"
        raise InputError(f"model {name!r} takes {takes.kind}, got {shape.kind}; {hint}")


def begins_trained(name: str) -> bool:
    """Return True if a network starts from trained weights."""
    return name.endswith(PRETRAINED) or name.startswith((*HUB_MODELS, CLIP))


def without_weights(name: str) -> str:
    """Return the name of the same network with random weights; building it downloads none."""
    if name.startswith(HUB_MODELS):
        return f"{name}{UNTRAINED}"
    base = name.removesuffix(PRETRAINED)
    return f"{base}{UNTRAINED}" if base != name and base.startswith("timm:") else base


def hub_address(name: str, before: str = "") -> HubAddress:
    """Return repository and commit of a Hub network's name; raise ``InputError`` for a branch.

    ``before`` is the part of the model's name in front of ``name``, such as ``clip:``.
    """
    where = f"model {f'{before}{name}'!r}"
    address = HubAddress.parse(name.partition(":")[2].removesuffix(UNTRAINED), where)
    if not address.fixed or address.part:
        raise InputError(
            f"{where}: expected a commit of 40 digits, because weights of a branch may "
            f"change; use {before}hf:{address.repo}@COMMIT with a commit of the history on its page"
        )
    return address


@cache
def check_model(name: str) -> None:
    """Raise ``InputError`` for an unknown network, without allocating or downloading weights."""
    if name.startswith(HUB_MODELS):
        hub_address(name)  # More cannot be checked without a download.
    elif name not in model_names():
        import torch  # Only networks of libraries need it here.

        with torch.device("meta"):
            build_model(without_weights(name), 10, ImageShape(3, 32))


def unknown_model(name: str, known: Sequence[str]) -> InputError:
    """Return the error for an unknown name, with similar names or the first known names."""
    listed = known_names(name, known, "models")
    if listed.startswith("there") and len(known) > SHOWN:
        first = [*known[:SHOWN], f"... ({len(known) - SHOWN} more)"]
        listed = known_names(name, first, "models")
    return InputError(f"unknown model {name!r}; {listed}")
