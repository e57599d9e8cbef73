"""Objectives that a temperature-type calibrator minimises in its fit, one file each."""

from typing import Any

from trainables.calibrators.objectives._base import OBJECTIVES, Objective, RowTerms

__all__ = ["OBJECTIVES", "Objective", "RowTerms", "build_objective"]


def build_objective(name: str, **parameters: Any) -> Objective:
    """Make a fitting objective by name, for example ``build_objective("ls", smoothing=0.05)``.

    Args:
        name: A name from ``OBJECTIVES.names()``.
        **parameters: Its hyper-parameters; those left out keep their published default.

    Returns:
        The objective; one with a state of its own, such as ``cls``, serves a single fit.

    Raises:
        InputError: If the name or a parameter's name is unknown.
        ValueError: If a value is out of its range.
    """
    return OBJECTIVES.build(name, **parameters)
