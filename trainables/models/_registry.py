"""Finds the builder of a network by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from trainables.errors import InputError
from trainables.models._base import Network

PACKAGE = "trainables.models"


@dataclass(frozen=True)
class ImageShape:
    """What a builder must know of the images: channels and side length in pixels."""

    channels: int
    size: int


Builder = Callable[[int, ImageShape], Network]
_BUILDERS: dict[str, Builder] = {}


def register_model(name: str) -> Callable[[Builder], Builder]:
    """Return a decorator that makes a builder known under ``name``."""

    def add(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise ValueError(f"model {name!r} is registered twice")
        _BUILDERS[name] = builder
        return builder

    return add


def model_names() -> list[str]:
    """Return the names of all networks, sorted; ``timm:NAME`` works beside them."""
    _load()
    return sorted(_BUILDERS)


def build_model(name: str, num_classes: int, channels: int, size: int) -> Network:
    """Make a network with random weights from torch's global generator.

    Args:
        name: A name from ``model_names()``.
        num_classes: K.
        channels: Channels of the images.
        size: Side length of the images in pixels.

    Raises:
        InputError: If there is no network of that name.
    """
    _load()
    if name not in _BUILDERS:
        near = get_close_matches(name, _BUILDERS, n=3) or model_names()
        raise InputError(f"unknown model {name!r}; there are: {', '.join(near)}")
    return _BUILDERS[name](num_classes, ImageShape(channels, size))


def _load() -> None:
    for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__):
        importlib.import_module(f"{PACKAGE}.{module.name}")
