"""First points of the sampler ``prior`` (default, portfolio, spread) and its Gaussian process."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.sweep.plan import StudyPlan
from search_spaces import Parameter

POINTS = 4
"""Number of first points, which depend on no result; the published default is one of them."""

MODELLED = 20
"""Number of trials after which TPE suggests the rest; before, a Gaussian process does.

With ``pareto``, TPE suggests all but the first points.
"""

LEAST, ERRORS = 8, 0.5
"""From ``LEAST`` trials on, a search may stop if its expected improvement is at most ``ERRORS``
standard errors."""

CANDIDATES, LOCAL = 384, 128
"""Number of candidates for a suggestion: random ones, and ones near the best trials."""

LENGTH, NOISE = 0.3, 0.02
"""Length-scale as a share of each range; noise variance as a share of the values' variance."""

Floats = NDArray[np.float64]


class Next(NamedTuple):
    """A suggested configuration and its expected improvement, in units of the objective."""

    point: dict[str, Any]
    improvement: float


def suggestion(
    plan: StudyPlan, points: Sequence[Mapping[str, Any]], values: Sequence[float | None], seed: int
) -> Next:
    """Return the candidate with the highest expected improvement under a Gaussian process.

    The kernel is fixed, because few trials cannot determine one.

    Args:
        plan: The study.
        points: Configurations of the trials so far, those with ``values`` first. The others get
            their predicted objective.
        values: Objectives of ended trials; None for a failed or stopped one, which counts as the
            worst.
        seed: Determines the candidates.
    """
    from scipy.special import ndtr  # Slow to import, and needed by few commands.

    searched, rng = _searched(plan), np.random.default_rng(seed)
    shares = np.array([[_share(p, point[n]) for n, p in searched.items()] for point in points])
    scaled, unit = _standardised(values)
    near = shares[np.argsort(scaled)[:4]][rng.integers(min(4, len(scaled)), size=LOCAL)]
    drawn = np.clip(near + rng.normal(0, 0.1, near.shape), 0, 1)
    drawn = np.concatenate([rng.random((CANDIDATES, len(searched))), drawn])
    tried, candidates = _features(searched, shares), _features(searched, drawn)
    running, _ = predicted(tried[: len(scaled)], scaled, tried[len(scaled) :])
    known = np.concatenate([scaled, running])
    mean, error = predicted(tried, known, candidates)
    z = (known.min() - mean) / error
    gain = error * (z * ndtr(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    best = int(gain.argmax())
    named = zip(searched.items(), drawn[best], strict=True)
    point = {name: _value(p, float(share)) for (name, p), share in named}
    return Next(point, float(gain[best]) * unit)


def _standardised(values: Sequence[float | None]) -> tuple[Floats, float]:
    """Return values, standardised (missing ones as the worst), and their standard deviation."""
    known = np.array([np.nan if value is None else value for value in values], dtype=float)
    finite = known[np.isfinite(known)]
    if not len(finite):
        return np.zeros(len(known)), 0.0
    unit = float(finite.std()) if np.ptp(finite) else 0.0
    scaled = np.where(np.isfinite(known), known, finite.max()) - finite.mean()
    return scaled / (unit or 1.0), unit


def _features(searched: Mapping[str, Parameter], shares: Floats) -> Floats:
    """Return coordinates of points: any two values of a categorical parameter have distance 1."""
    columns: list[Floats] = []
    for parameter, share in zip(searched.values(), shares.T, strict=True):
        if parameter.type != "categorical":
            columns.append(share)
            continue
        size = len(parameter.choices)
        columns += [(share * size // 1 == choice) * math.sqrt(0.5) for choice in range(size)]
    return np.array(columns).T


def predicted(tried: Floats, values: Floats, candidates: Floats) -> tuple[Floats, Floats]:
    """Return the process's mean and standard deviation at the candidates.

    This is faster than scikit-learn, which takes 15 ms.
    """
    between = _kernel(tried, candidates)
    weights = np.linalg.solve(_kernel(tried, tried) + NOISE * np.eye(len(tried)), between)
    left = 1 - (between * weights).sum(axis=0)
    return weights.T @ values, np.sqrt(np.maximum(left, 1e-12))


def _kernel(one: Floats, other: Floats) -> Floats:
    """Return the covariance (Matern 5/2) of two sets of points."""
    far = np.sqrt(5 * ((one[:, None] - other[None]) ** 2).sum(axis=-1)) / LENGTH
    return (1 + far + far * far / 3) * np.exp(-far)


def first_points(plan: StudyPlan, default: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the first configurations of a study, the published default first."""
    points = [dict(default), *plan.portfolio]
    different: list[dict[str, Any]] = []
    for point in [*points, *islice(_spread(plan, default), 2 * POINTS)]:
        if point not in different:
            different.append(point)
    return different[:POINTS]


def _spread(plan: StudyPlan, default: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield points of the additive recurrence from the default (Roberts's R_d)."""
    searched = _searched(plan)
    root = _root(len(searched))
    for number in count(1):
        yield {
            name: _value(p, (_share(p, default[name]) + number * root ** -(place + 1)) % 1)
            for place, (name, p) in enumerate(searched.items())
        }


def _searched(plan: StudyPlan) -> dict[str, Parameter]:
    return {
        f"{part}.{name}": p for part, named in plan.searched.items() for name, p in named.items()
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
        return parameter.choices[
            min(int(share * len(parameter.choices)), len(parameter.choices) - 1)
        ]
    low, high, _ = _ends(parameter, parameter.high)
    value = low + share * (high - low)
    value = math.exp(value) if parameter.scale == "log" else value
    value = min(max(value, parameter.low or 0.0), parameter.high or 0.0)
    return round(value) if parameter.type == "int" else value


def _ends(parameter: Parameter, value: Any) -> tuple[float, float, float]:
    """Return the range and a value of a number, as logarithms if its scale is ``log``."""
    assert parameter.low is not None
    assert parameter.high is not None
    three = parameter.low, parameter.high, float(value)
    if parameter.scale != "log":
        return three
    low, high, value = map(math.log, three)
    return low, high, value
