"""Steps and drifts in one series, found in the series as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import ruptures
from numpy.typing import NDArray

__all__ = ["STEP_NIGHTS", "Step", "find_steps", "worse_step"]

STEP_NIGHTS = 5
"""Fewest nights between two steps."""
STEP_ERRORS = 6.0
"""How many standard errors a step must have."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """Where a series went to another level, and the levels on both sides.

    Attributes:
        index: First night of the new level, counted from 0.
        before: Mean of the nights from the step before to this one.
        after: Mean of the nights from this step to the next.
        nights: Number of nights behind ``after``.
    """

    index: int
    before: float
    after: float
    nights: int


def find_steps(series: Floats, noise: float) -> tuple[Step, ...]:
    """Return the steps of a series, oldest first; a drift comes out as a staircase.

    Source: Killick, Fearnhead and Eckley, Optimal Detection of Changepoints With a Linear
    Computational Cost, 2012, with the squared error; as the library ``ruptures`` does it. A step is
    worth its while if it lowers the squared error by ``STEP_ERRORS`` squared times the variance.

    Args:
        series: Finite figures (T,), oldest first.
        noise: Standard deviation of one night, above 0.

    Raises:
        ValueError: If ``noise`` is not above 0.
    """
    if not noise > 0:
        raise ValueError(f"noise={noise!r} is outside (0, inf)")
    if len(series) < 2 * STEP_NIGHTS:
        return ()
    search = ruptures.KernelCPD(kernel="linear", min_size=STEP_NIGHTS)
    scaled = (series - series.mean())[:, None] / noise
    ends = [int(end) for end in search.fit(scaled).predict(pen=STEP_ERRORS**2)]
    means = [float(part.mean()) for part in np.split(series, ends[:-1])]
    steps = zip(ends, ends[1:], means, means[1:], strict=False)
    return tuple(Step(at, before, after, end - at) for at, end, before, after in steps)


def worse_step(series: Floats, noise: float, threshold: float) -> tuple[Step, float] | None:
    """Return the last step and the level to hold it against, if the series has become worse.

    That level is the lowest one before; so a drift is seen although each of its steps is small, and
    what was gained once must not be lost again. Tonight must be as bad, too: a series that has just
    recovered is no longer worse.

    Args:
        series: Finite numbers (T,) of which a larger one is worse, oldest first.
        noise: Standard deviation of one night, above 0.
        threshold: Smallest difference that matters.
    """
    if len(series) < 2 * STEP_NIGHTS or series[-1] - _lowest(series) <= threshold:
        return None
    steps = find_steps(series, noise)
    if not steps:
        return None
    last, best = steps[-1], min(steps, key=lambda step: step.before)
    lengths = np.diff([0, *(step.index for step in steps)])
    nights = int(lengths[steps.index(best)])
    error = noise * math.sqrt(1 / last.nights + 1 / nights)
    far = last.after - best.before > max(threshold, STEP_ERRORS * error)
    return (last, best.before) if far and series[-1] - best.before > threshold else None


def _lowest(series: Floats) -> float:
    """Return the lowest mean of ``STEP_NIGHTS`` nights in a row: no level is lower."""
    sums = np.cumsum(np.concatenate([[0.0], series]))
    return float((sums[STEP_NIGHTS:] - sums[:-STEP_NIGHTS]).min() / STEP_NIGHTS)
