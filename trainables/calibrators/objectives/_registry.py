"""The fitting objectives by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainables.common.registry import Registry

if TYPE_CHECKING:
    from trainables.calibrators.objectives._base import Objective

OBJECTIVES: Registry[Objective] = Registry(
    "fitting objective",
    "trainables.calibrators.objectives",
    "trainables.calibrators.objectives._base.Objective",
    "objectives",
)


def build_objective(name: str, **parameters: Any) -> Objective:
    """Make a fitting objective by name, for example ``build_objective("ls", smoothing=0.05)``.

    Args:
        name: A name from ``OBJECTIVES.names()``.
        **parameters: Its hyper-parameters; those left out keep their published default.

    Returns:
        The objective; use one with its own state, such as ``cls``, for a single fit.

    Raises:
        InputError: If the name or a parameter's name is unknown.
        ValueError: If a value is out of its range.
    """
    return OBJECTIVES.build(name, **parameters)
