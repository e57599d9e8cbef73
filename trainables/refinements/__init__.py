"""Refinements, which retrain the classifier on frozen features, one file each."""

from collections.abc import Mapping
from typing import Any

from trainables.refinements._base import REFINEMENTS, Refinement
from trainables.refinements._together import HeadsTogether
from trainables.refinements._trainer import HeadTrainer

__all__ = [
    "REFINEMENTS",
    "HeadTrainer",
    "HeadsTogether",
    "Refinement",
    "build_refinement",
    "refinement_determinants",
    "requested_refinement",
]

Parts = Mapping[str, Mapping[str, Any]]


def build_refinement(name: str, **parameters: Any) -> Refinement:
    """Make a refinement by name, for example ``build_refinement("macal", gamma=0.9)``.

    Raises:
        InputError: If the name or a parameter's name is unknown (a ``ValueError``).
        ValueError: If a value is out of its range.
    """
    return REFINEMENTS.build(name, **parameters)


def requested_refinement(parts: Parts) -> Refinement:
    """Make the refinement that a stage's request names, perhaps one stored by an earlier version.

    A parameter that the request leaves out has the value of ``Refinement.earlier``, so that a
    request means for good what it meant when it was made.

    Raises:
        InputError: If the name or a parameter's name is unknown (a ``ValueError``).
        ValueError: If a value is out of its range.
    """
    ((name, parameters),) = parts.items()
    return build_refinement(name, **{**REFINEMENTS.get(name).earlier, **parameters})


def refinement_determinants(parts: Parts) -> dict[str, dict[str, Any]]:
    """Return what of a request's parts goes into its key.

    A parameter that came later counts only where it changes what is computed, so that a request
    that names it finds what one that could not has stored.
    """
    return {name: _without_earlier(name, values) for name, values in parts.items()}


def _without_earlier(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    entry = REFINEMENTS.get(name)
    return {
        key: value
        for key, value in values.items()
        if key not in entry.added or value != entry.earlier[key]
    }
