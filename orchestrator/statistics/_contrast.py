"""The difference of two recipes, with the variance over other seeds and test rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from orchestrator.statistics._bootstrap import LEVEL, POWER, Difference, Measured

NEGLIGIBLE = 1e-9  # Share of the median variance; a smaller variance is a rounding error.
FREEDOM = (1e-3, 1e6)  # Range of the search for half the degrees of freedom of a prior.


@dataclass(frozen=True)
class Contrast:
    """The difference of two recipes and the parts of its variance.

    Attributes:
        value: First minus second, of the means over seeds; fractions (nats for NLL).
        centre: ``value`` without the bias of a binned error; see ``paired_bootstrap``.
        between: Variance of the difference between seeds, on these test rows; 0 for one seed.
        shared: Variance due to test rows that is common to all seeds.
        own: Variance due to test rows that is independent between seeds.
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
        """Return the standard error over seeds and test rows; for one seed, over rows only."""
        rows = self.shared + self.own / self.seeds
        return math.sqrt(max(self.between / self.seeds + self.shared, rows))

    def p_value(self, at: float = 0.0) -> float:
        """Return the two-sided p-value of a true difference of ``at``, by Student's t."""
        gap = abs(self.centre - at)
        if not self.error:
            return float(not gap)
        return float(2 * scipy.stats.t.sf(gap / self.error, self.freedom))

    def interval(self, level: float = LEVEL) -> Difference:
        """Return the difference with its confidence interval."""
        half = float(scipy.stats.t.ppf((1 + level) / 2, self.freedom)) * self.error
        detectable = reach(self.freedom, 1 - level) * self.error
        return Difference(self.value, self.centre - half, self.centre + half, detectable)


def reach(freedom: float, level: float) -> float:
    """Return the difference that is found in 80% of cases, in standard errors."""
    t = scipy.stats.t
    return float(t.ppf(1 - level / 2, freedom) + t.ppf(POWER, freedom))


def contrast(first: Measured, second: Measured) -> Contrast:
    """Compare two recipes seed by seed, on the same resamples of the test rows.

    The variance between seeds already includes the part of the bootstrap's variance that is
    independent between seeds, so that part is counted once. The degrees of freedom are those of
    the seeds only: with few seeds, more degrees of freedom for the rows make intervals too narrow.
    If one recipe has more seeds, the variance uses the seeds that both have.
    """
    seeds = min(len(first.values), len(second.values))
    value = float(first.values.mean() - second.values.mean())
    lifted = float(first.draws.mean() - second.draws.mean())
    gaps = first.values[:seeds] - second.values[:seeds]
    draws = first.draws[:seeds] - second.draws[:seeds]
    mean = float(draws.mean(0).var(unbiased=False))
    each = float(draws.var(1, unbiased=False).mean())
    if seeds == 1:
        return Contrast(value, 2 * value - lifted, 1, 0.0, mean, 0.0, math.inf)
    own = max(each - mean, 0.0) * seeds / (seeds - 1)
    shared = max(mean - own / seeds, 0.0)
    between = float(gaps.var())
    return Contrast(value, 2 * value - lifted, seeds, between, shared, own, seeds - 1)


def moderated(contrasts: Sequence[Contrast], recipes: int) -> list[Contrast]:
    """Return contrasts with variances between seeds that are shrunk towards a common value.

    Two or three seeds estimate a variance badly, but all pairs together estimate it well: the
    empirical Bayes estimate of Smyth (2004, section 6.2) shrinks each variance towards their common
    value, less if they differ more. Pairs share recipes, so they are less independent than the fit
    assumes. So only half of the fit's degrees of freedom are used: this keeps the error rate in
    simulations (``benchmarks/ties.py``), and using all of them does not. The result has at most the
    degrees of freedom of all recipes and seeds together. Fewer than three known variances are
    returned as they are.
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


def _prior(variances: NDArray[np.float64], freedom: NDArray[np.float64]) -> tuple[float, float]:
    """Fit a scaled inverse chi-square prior of variances; return its freedom and variance."""
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
