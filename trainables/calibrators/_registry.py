"""The registry that every calibrator file adds itself to."""

from trainables.calibrators._base import Calibrator
from trainables.registry import Registry

CALIBRATORS: Registry[Calibrator] = Registry("calibrator", "trainables.calibrators")
