"""The refinements by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainables.common.registry import Registry

if TYPE_CHECKING:
    from trainables.refinements._base import Refinement

REFINEMENTS: Registry[Refinement] = Registry(
    "refinement", "trainables.refinements", "trainables.refinements._base.Refinement", "refinements"
)


def build_refinement(name: str, **parameters: Any) -> Refinement:
    """Make a refinement by name, for example ``build_refinement("macal", gamma=0.9)``.

    Raises:
        InputError: If the name or a parameter's name is unknown (a ``ValueError``).
        ValueError: If a value is out of its range.
    """
    return REFINEMENTS.build(name, **parameters)
