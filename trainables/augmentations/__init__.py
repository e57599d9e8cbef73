"""Batch augmentations that change the training step, one file each; they compose with any loss."""

from trainables.augmentations._base import AUGMENTATIONS, Augmentation
