"""The registry that every training scheme file adds itself to."""

from trainables.registry import Registry
from trainables.schemes._base import Scheme

SCHEMES: Registry[Scheme] = Registry("training scheme", "trainables.schemes")
