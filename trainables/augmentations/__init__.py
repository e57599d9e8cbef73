"""Batch augmentations that change the training step, one file each; they compose with any loss."""

from typing import Any

from trainables.augmentations._base import Augmentation
from trainables.augmentations._registry import AUGMENTATIONS

__all__ = ["AUGMENTATIONS", "Augmentation", "build_augmentation"]


def build_augmentation(name: str, **parameters: Any) -> Augmentation:
    """Make an augmentation by name, for example ``build_augmentation("mixup", alpha=0.2)``.

    Raises:
        InputError: If the name or a parameter's name is unknown (a ``ValueError``).
        ValueError: If a value is out of its range.
    """
    return AUGMENTATIONS.build(name, **parameters)
