"""The first trials of ``sampler: prior``: the published default, a portfolio, and a spread."""

import math
from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Any

from orchestrator.sweep.plan import StudyPlan
from search_spaces import Parameter

POINTS = 4
"""Points that depend on no result, the published default included."""

MODELLED = 20
"""A Gaussian process suggests trials up to this number; TPE, which is faster, suggests the rest."""


def first_points(plan: StudyPlan, default: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the first configurations of a study, the published default first."""
    points = [dict(default), *plan.portfolio]
    different: list[dict[str, Any]] = []
    for point in [*points, *islice(_spread(plan, default), 2 * POINTS)]:
        if point not in different:
            different.append(point)
    return different[:POINTS]


def _spread(plan: StudyPlan, default: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield points of the additive sequence that starts at the default (Roberts's R_d)."""
    searched = {
        f"{part}.{name}": p for part, found in plan.searched.items() for name, p in found.items()
    }
    root = _root(len(searched))
    for number in count(1):
        yield {
            name: _value(p, (_share(p, default[name]) + number * root ** -(place + 1)) % 1)
            for place, (name, p) in enumerate(searched.items())
        }


def _root(dimensions: int) -> float:
    """Return the positive root of ``x ** (d + 1) = x + 1``; the golden ratio in one dimension."""
    root = 2.0
    for _ in range(64):
        root = float((1 + root) ** (1 / (dimensions + 1)))
    return root


def _share(parameter: Parameter, value: Any) -> float:
    """Return the position of a value in its range, on the parameter's scale, from 0 to 1."""
    if parameter.type == "categorical":
        return (parameter.choices.index(value) + 0.5) / len(parameter.choices)
    low, high, value = _ends(parameter, value)
    return (value - low) / (high - low) if high > low else 0.0


def _value(parameter: Parameter, share: float) -> Any:
    if parameter.type == "categorical":
        return parameter.choices[int(share * len(parameter.choices))]
    low, high, _ = _ends(parameter, parameter.high)
    found = low + share * (high - low)
    found = math.exp(found) if parameter.scale == "log" else found
    found = min(max(found, parameter.low or 0.0), parameter.high or 0.0)
    return round(found) if parameter.type == "int" else found


def _ends(parameter: Parameter, value: Any) -> tuple[float, float, float]:
    """Return the range and a value of a number, as logarithms where it is searched so."""
    assert parameter.low is not None
    assert parameter.high is not None
    three = parameter.low, parameter.high, float(value)
    if parameter.scale != "log":
        return three
    low, high, value = map(math.log, three)
    return low, high, value
