"""The registry that every augmentation file adds itself to."""

from trainables.augmentations._base import Augmentation
from trainables.registry import Registry

AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation", "trainables.augmentations")
