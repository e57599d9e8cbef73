"""Objectives that a temperature-type calibrator minimises in its fit, one file each."""

from trainables.calibrators.objectives._base import (
    OBJECTIVES,
    Objective,
    RowTerms,
    build_objective,
)
