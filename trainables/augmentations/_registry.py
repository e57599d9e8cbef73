"""The augmentations by name."""

from typing import TYPE_CHECKING

from trainables.common.registry import Registry

if TYPE_CHECKING:
    from trainables.augmentations._base import Augmentation

AUGMENTATIONS: "Registry[Augmentation]" = Registry(
    "augmentation",
    "trainables.augmentations",
    "trainables.augmentations._base.Augmentation",
    "methods",
)
