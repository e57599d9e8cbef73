"""Differences between recipes with intervals from resampled test rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from orchestrator.statistics._resampled import resampled
from trainables.common.later import Tensor, torch
from trainables.metrics import METRICS, Rows, of_sets

LEVEL = 0.95
POWER = 0.8
DRAWS = 2000
SMALL = 1 << 23  # Maximum number of counts (two bytes each) in a cached array.


@dataclass(frozen=True)
class Difference:
    """The difference between a recipe and the baseline.

    Attributes:
        value: Metric of the recipe minus metric of the baseline, on all rows; fractions (nats for
            NLL).
        low, high: Ends of the confidence interval, by default of 95%.
        detectable: The smallest true difference that, with these rows and seeds, would be found in
            80% of cases.
    """

    value: float
    low: float
    high: float
    detectable: float = math.nan

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 is outside the interval."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class PairedBootstrap:
    """Recipes compared with a baseline on the same test rows.

    Attributes:
        values: Metric of each recipe on all rows, the mean over its seeds.
        differences: Difference of every other recipe from the baseline.
        groups: Number of groups of rows, such as images; 0 if single rows were resampled.
    """

    metric: str
    baseline: str
    values: dict[str, float]
    differences: dict[str, Difference]
    seeds: dict[str, int]
    rows: int
    draws: int
    groups: int = 0

    @property
    def drawn(self) -> str:
        """Return the sampled units in words."""
        if not self.groups:
            return f"{self.rows} test rows"
        return f"{self.rows} pixels of {self.groups} test images, drawn as whole images"


class Measured(NamedTuple):
    """A metric of one recipe on all rows, (seeds,), and on each resample, (seeds, draws)."""

    values: Tensor
    draws: Tensor


Interval = Callable[[Measured, Measured, float], Difference]
Calibrations = Callable[[str], Sequence[Rows] | None]


def paired_bootstrap(
    predictions: Mapping[str, Sequence[Tensor]],
    labels: Tensor | Sequence[Tensor],
    metric: str = "ece",
    *,
    baseline: str,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
    done: Callable[[str], None] = lambda recipe: None,
    groups: Tensor | None = None,
    numbers: Sequence[Tensor] | None = None,
    interval: Interval | None = None,
    calibrations: Calibrations = lambda recipe: None,
) -> PairedBootstrap:
    """Compare recipes with a baseline by resampling test rows, or whole groups of them.

    Each resample draws N rows with replacement, and all recipes and seeds are measured on the same
    rows; a recipe's seeds are averaged. If seeds were tested on different rows of one file, rows of
    the file are drawn, and each seed is measured on the drawn rows that it was tested on. The
    interval covers other test rows, for these trained networks. It does not cover other seeds or
    another search; see the standard deviation over seeds for that.

    A binned error is biased upwards, and on resampled rows about twice as much. So the centre of
    the interval is the difference minus the mean excess of the resampled differences over it; the
    interval contains ``level`` of the resampled differences. Its coverage is right if the errors of
    both recipes are well above their noise floors. Otherwise the bias remains and coverage falls to
    84% to 91% in simulations, so ``TaskComparison`` marks differences inside the floor. Accuracy,
    NLL and Brier have no bias and need no correction.

    Args:
        predictions: Maps a recipe to log-probabilities (N, K) of N rows, one tensor per seed.
        labels: (N,), integers in [0, K); or one such tensor per seed.
        metric: One of ``METRICS.measurable``; binned errors have 15 bins.
        baseline: A key of ``predictions``.
        level: Share of resamples inside an interval, in (0, 1).
        draws: Number of resamples, at least 1; with 2000 the ends of an interval vary by about 3%
            of its width.
        seed: Determines the resamples.
        done: Called with each recipe when it has been resampled.
        groups: Number of the group of each row, (N,), int64, such as the image of a pixel: pixels
            of one image are not independent. Whole groups are drawn, and should have about equal
            sizes. If None, single rows are drawn.
        numbers: The rows of the file that each seed was tested on, (N,) each; None if equal for
            all seeds.
        interval: Computes the difference from the figures of a recipe and the baseline, instead of
            the interval over test rows.
        calibrations: Returns a recipe's validation rows, one pair per seed, for metrics that need
            them.

    Raises:
        ValueError: If the metric or the baseline is unknown, a recipe has no seed, shapes do not
            fit, or ``draws`` is below 1.
    """
    if baseline not in predictions:
        raise ValueError(f"baseline={baseline!r} is not one of {', '.join(predictions)}")
    found = measure(
        predictions,
        labels,
        metric,
        draws=draws,
        seed=seed,
        done=done,
        groups=groups,
        numbers=numbers,
        calibrations=calibrations,
    )
    values = {recipe: float(own.values.mean()) for recipe, own in found.items()}
    seeds = {recipe: len(own.values) for recipe, own in found.items()}
    reference = found.pop(baseline)
    make = interval or _difference
    differences = {recipe: make(own, reference, level) for recipe, own in found.items()}
    rows = len(labels) if isinstance(labels, Tensor) else len(labels[0])
    count = 0 if groups is None else len(groups.unique())
    return PairedBootstrap(metric, baseline, values, differences, seeds, rows, draws, count)


def measure(
    predictions: Mapping[str, Sequence[Tensor]],
    labels: Tensor | Sequence[Tensor],
    metric: str,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    done: Callable[[str], None] = lambda recipe: None,
    groups: Tensor | None = None,
    numbers: Sequence[Tensor] | None = None,
    calibrations: Calibrations = lambda recipe: None,
) -> dict[str, Measured]:
    """Measure every seed of every recipe on all rows and on the same resamples of them."""
    if metric not in METRICS.measurable:
        raise ValueError(f"metric={metric!r} is not one of {', '.join(METRICS.measurable)}")
    if draws < 1:
        raise ValueError(f"draws={draws!r} is outside [1, inf)")
    if not predictions:
        return {}
    several = max(1, *map(len, predictions.values()))
    each = [labels] * several if isinstance(labels, Tensor) else list(labels)
    if groups is None:
        counts = _counts(each, numbers, draws, seed)
    else:
        units, place = groups.unique(return_inverse=True)
        counts = [_resample_counts(len(units), draws, seed)[:, place]] * several
    found = {}
    for recipe, tables in predictions.items():
        rows = calibrations(recipe) if of_sets(metric) else None
        found[recipe] = _over_seeds(recipe, tables, each, metric, counts, rows)
        done(recipe)
    return found


def _counts(
    labels: Sequence[Tensor], numbers: Sequence[Tensor] | None, draws: int, seed: int
) -> list[Tensor]:
    """Return the count of each row in each resample, (draws, N), int16, for each seed."""
    if numbers is None:
        return [_resample_counts(len(labels[0]), draws, seed)] * len(labels)
    whole, place = torch.cat(list(numbers)).unique(return_inverse=True)
    counts = _resample_counts(len(whole), draws, seed)
    return [counts[:, own] for own in place.split([len(own) for own in numbers])]


def _resample_counts(rows: int, draws: int, seed: int) -> Tensor:
    """Return the count of each row in each resample, (draws, rows), int16."""
    return (_small_counts if rows * draws <= SMALL else _drawn_counts)(rows, draws, seed)


def _drawn_counts(rows: int, draws: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.zeros(draws, rows, dtype=torch.int16)
    ones = torch.ones(rows, dtype=torch.int16)
    for row in counts:
        row.index_add_(0, torch.randint(rows, (rows,), generator=generator), ones)
    return counts


_small_counts = lru_cache(maxsize=2)(_drawn_counts)  # All recipes of a task use the same counts.


def _over_seeds(
    recipe: str,
    tables: Sequence[Tensor],
    labels: Sequence[Tensor],
    metric: str,
    counts: Sequence[Tensor],
    calibrations: Sequence[Rows | None] | None,
) -> Measured:
    for table, own in zip(tables, labels, strict=False):
        if table.ndim != 2 or len(table) != len(own):
            raise ValueError(
                f"predictions of {recipe} have shape {tuple(table.shape)}; expected ({len(own)}, K)"
            )
    if not tables:
        raise ValueError(f"there are no predictions of {recipe}")
    # A recipe may have fewer seeds than others.
    each = zip(tables, labels, counts, calibrations or [None] * len(tables), strict=False)
    parts = [resampled(metric, *seed) for seed in each]
    values = torch.tensor([part.value for part in parts], dtype=torch.float64)
    return Measured(values, torch.stack([part.draws for part in parts]))


def _difference(own: Measured, reference: Measured, level: float) -> Difference:
    value = float(own.values.mean() - reference.values.mean())
    draws = own.draws.mean(0) - reference.draws.mean(0)
    centre = value - (float(draws.mean()) - value)
    reach = float((draws - centre).abs().quantile(level))
    normal = NormalDist()
    errors = normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(POWER)
    detectable = errors * float(draws.std(unbiased=False))
    return Difference(value, centre - reach, centre + reach, detectable)
