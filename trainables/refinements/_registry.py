"""The registry that every refinement file adds itself to."""

from trainables.refinements._base import Refinement
from trainables.registry import Registry

REFINEMENTS: Registry[Refinement] = Registry("refinement", "trainables.refinements")
