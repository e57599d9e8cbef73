from ._base import Augmentation
from ._registry import AUGMENTATIONS

__all__ = ["AUGMENTATIONS", "Augmentation"]
