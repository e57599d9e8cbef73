"""The registry that every loss file adds itself to."""

from trainables.losses._base import Loss
from trainables.registry import Registry

LOSSES: Registry[Loss] = Registry("loss", "trainables.losses")
