"""The registry that every fitting objective adds itself to."""

from trainables.calibrators.objectives._base import Objective
from trainables.registry import Registry

OBJECTIVES: Registry[Objective] = Registry("fitting objective", "trainables.calibrators.objectives")
