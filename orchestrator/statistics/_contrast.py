"""How far two recipes differ, over the seeds and test rows that might have been."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from orchestrator.statistics._bootstrap import LEVEL, POWER, Difference, Measured
from trainables.common.later import Tensor

NEGLIGIBLE = 1e-9  # Of the median variance: anything below is rounding.
FREEDOM = (1e-3, 1e6)  # Ends between which half the degrees of freedom of a prior are looked for.


@dataclass(frozen=True)
class Contrast:
    """The difference of two recipes and the parts of its variance.

    Attributes:
        value: First minus second, of the means over seeds; fractions (nats for NLL).
        centre: The same without the bias of a binned error, see ``paired_bootstrap``.
        between: Variance of the difference from seed to seed, on these test rows; 0 of one seed.
        shared: What other test rows would change in all seeds alike, a variance.
        own: What they would change in each seed on its own, a variance.
        freedom: Degrees of freedom of ``between``; infinite for one seed.
    """

    value: float
    centre: float
    seeds: int
    between: float
    shared: float
    own: float
    freedom: float

    @property
    def error(self) -> float:
        """Return the standard error, over seeds and test rows; of one seed, over rows alone."""
        rows = self.shared + self.own / self.seeds
        return math.sqrt(max(self.between / self.seeds + self.shared, rows))

    def p_value(self, at: float = 0.0) -> float:
        """Return the two-sided p-value of the true difference being ``at`` (Student's t)."""
        gap = abs(self.centre - at)
        if not self.error:
            return float(not gap)
        return float(2 * scipy.stats.t.sf(gap / self.error, self.freedom))

    def interval(self, level: float = LEVEL) -> Difference:
        """Return the difference with an interval that holds the true one as often as it says."""
        half = float(scipy.stats.t.ppf((1 + level) / 2, self.freedom)) * self.error
        detectable = reach(self.freedom, 1 - level) * self.error
        return Difference(self.value, self.centre - half, self.centre + half, detectable)


def reach(freedom: float, level: float) -> float:
    """Return how many standard errors a difference takes to be found in 80% of cases."""
    t = scipy.stats.t
    return float(t.ppf(1 - level / 2, freedom) + t.ppf(POWER, freedom))


def contrast(first: Measured, second: Measured) -> Contrast:
    """Compare two recipes seed by seed, on the same resamples of the test rows.

    Differences between seeds hold what the rows change in each seed on its own, so that part of
    the bootstrap's variance is not counted twice. The degrees of freedom are those of the seeds
    alone: with few seeds any share for the rows makes intervals too narrow. Where one has more
    seeds, the variance is that of as many as both have.
    """
    seeds = min(len(first.values), len(second.values))
    value = float(first.values.mean() - second.values.mean())
    lifted = float(first.draws.mean() - second.draws.mean())
    gaps = first.values[:seeds] - second.values[:seeds]
    draws = first.draws[:seeds] - second.draws[:seeds]
    mean, each = _variance(draws.mean(0)), float(draws.var(1, unbiased=False).mean())
    if seeds == 1:
        return Contrast(value, 2 * value - lifted, 1, 0.0, mean, 0.0, math.inf)
    own = max(each - mean, 0.0) * seeds / (seeds - 1)
    shared = max(mean - own / seeds, 0.0)
    between = float(gaps.var())
    return Contrast(value, 2 * value - lifted, seeds, between, shared, own, seeds - 1)


def moderated(contrasts: Sequence[Contrast], recipes: int) -> list[Contrast]:
    """Return contrasts whose variances between seeds borrow from each other.

    Two or three seeds tell a variance badly, all pairs of a board together much better: the
    empirical Bayes estimate of Smyth (2004, section 6.2) shrinks each towards their common value,
    the less the more they differ. Pairs share recipes, so that fewer of them are independent than
    the fit supposes; half of its degrees of freedom hold the error rate in simulations
    (``benchmarks/ties.py``), all of them do not. There are never more than all recipes and seeds
    together have.
    """
    seeds = [one for one in contrasts if one.seeds > 1]
    typical = float(np.median([one.between for one in seeds])) if seeds else 0.0
    known = [one for one in seeds if one.between > NEGLIGIBLE * typical]
    if len(known) < 3:
        return list(contrasts)
    freedom, variance = _prior(
        np.array([one.between for one in known]), np.array([one.freedom for one in known])
    )
    most = (recipes - 1) * min(one.freedom for one in known)
    freedom = min(freedom, most) / 2
    return [one if one.seeds == 1 else _shrunk(one, freedom, variance, most) for one in contrasts]


def _shrunk(one: Contrast, freedom: float, variance: float, most: float) -> Contrast:
    whole = freedom + one.freedom
    between = (freedom * variance + one.freedom * one.between) / whole
    return replace(one, between=between, freedom=max(min(whole, most), one.freedom))


def _prior(
    variances: NDArray[np.float64],
    freedom: NDArray[np.float64],
) -> tuple[float, float]:
    """Return degrees of freedom and variance of the scaled inverse chi-square that fits."""
    special = scipy.special
    logs = np.log(variances) - special.digamma(freedom / 2) + np.log(freedom / 2)
    mean = float(logs.mean())
    spread = float(logs.var(ddof=1) - special.polygamma(1, freedom / 2).mean())
    low, high = FREEDOM
    if spread <= special.polygamma(1, high):
        return math.inf, math.exp(mean)
    if spread >= special.polygamma(1, low):
        return 0.0, math.exp(mean)
    half = scipy.optimize.brentq(lambda x: special.polygamma(1, x) - spread, low, high)
    return 2 * half, math.exp(mean + float(special.digamma(half)) - math.log(half))


def _variance(values: Tensor) -> float:
    return float(values.var(unbiased=False))
