"""Refinements, which retrain the classifier on frozen features, one file each."""

from typing import Any

from trainables.refinements._base import REFINEMENTS, Refinement
from trainables.refinements._together import HeadsTogether
from trainables.refinements._trainer import HeadTrainer


def build_refinement(name: str, **parameters: Any) -> Refinement:
    """Make a refinement by name, for example ``build_refinement("macal", gamma=0.9)``.

    Raises:
        InputError: If the name or a parameter's name is unknown (a ``ValueError``).
        ValueError: If a value is out of its range.
    """
    return REFINEMENTS.build(name, **parameters)
