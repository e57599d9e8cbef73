"""Finds the builder of a network by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from trainables.errors import InputError
from trainables.models._base import Network

PACKAGE = "trainables.models"
SHOWN = 24


@dataclass(frozen=True)
class ImageShape:
    """What a builder must know of the images: channels and side length in pixels."""

    channels: int
    size: int


Builder = Callable[[int, ImageShape], Network]
LibraryBuilder = Callable[[str, int, ImageShape], Network]
_BUILDERS: dict[str, Builder] = {}
_LIBRARIES: dict[str, LibraryBuilder] = {}


def register_model(name: str) -> Callable[[Builder], Builder]:
    """Return a decorator that makes a builder known under ``name``."""

    def add(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise ValueError(f"model {name!r} is registered twice")
        _BUILDERS[name] = builder
        return builder

    return add


def register_library(prefix: str) -> Callable[[LibraryBuilder], LibraryBuilder]:
    """Return a decorator for the builder of all names that begin with ``prefix:``."""

    def add(builder: LibraryBuilder) -> LibraryBuilder:
        if prefix in _LIBRARIES:
            raise ValueError(f"model library {prefix!r} is registered twice")
        _LIBRARIES[prefix] = builder
        return builder

    return add


def model_names() -> list[str]:
    """Return the names of our networks, sorted; ``timm:``, ``torchvision:`` work beside them."""
    _load()
    return sorted(_BUILDERS)


def build_model(name: str, num_classes: int, channels: int, size: int) -> Network:
    """Make a network with random weights from torch's global generator.

    Args:
        name: A name from ``model_names()``, ``timm:NAME``, ``timm:NAME@pretrained`` (weights from
            the network instead of random ones, but for the classifier) or ``torchvision:NAME``.
        num_classes: K.
        channels: Channels of the images.
        size: Side length of the images in pixels.

    Raises:
        InputError: If there is no network of that name, or it cannot take such images.
        ValueError: If a number is below 1.
    """
    for key, value in (("num_classes", num_classes), ("channels", channels), ("size", size)):
        if value < 1:
            raise ValueError(f"{key}={value} is outside [1, inf)")
    _load()
    shape = ImageShape(channels, size)
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _LIBRARIES:
        return _LIBRARIES[prefix](rest, num_classes, shape)
    if name not in _BUILDERS:
        raise unknown_model(name, [*model_names(), *(f"{key}:NAME" for key in sorted(_LIBRARIES))])
    return _BUILDERS[name](num_classes, shape)


def unknown_model(name: str, known: Sequence[str]) -> InputError:
    """Return the error for a name that is not in ``known``: near names, or a list where short."""
    near = get_close_matches(name, known, n=3)
    if near:
        return InputError(f"unknown model {name!r}; near names: {', '.join(near)}")
    listed = ", ".join(known[:SHOWN])
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return InputError(f"unknown model {name!r}; there are: {listed}{more}")


def _load() -> None:
    for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__):
        importlib.import_module(f"{PACKAGE}.{module.name}")
