"""Make the series of each cell over the nights, and find steps and drifts in it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import ruptures
from numpy.typing import NDArray

from orchestrator.nightly.record import CellKey, NightRecord
from orchestrator.nightly.verdict.limits import measure_of

STEP_NIGHTS = 5  # Minimum number of nights between two steps.
STEP_ERRORS = 6.0  # Minimum size of a step, in standard errors.

Floats = NDArray[np.float64]


def pooled(metric: str, values: Sequence[float]) -> float:
    """Return a night's figure: the mean over its seeds, or the best for times and speeds."""
    measure = measure_of(metric)
    if measure.best:
        return max(values) if measure.higher else min(values)
    return math.fsum(values) / len(values)


def night_series(
    records: Sequence[NightRecord],
    cells: Sequence[CellKey],
    accepted: Mapping[CellKey, str] | None = None,
) -> Floats:
    """Return figures (T, C) of T nights (oldest first) and C cells, NaN if missing.

    All nights of a cell use the same seeds: the seeds that the last night shares with the most
    recent earlier night that has any of them. Nights without all of these seeds are left out, and
    so are nights before an accepted change of the cell, or of its recipe and task.
    """
    table = np.full((len(records), len(cells)), np.nan)
    names = [record.night for record in records]
    for column, cell in enumerate(cells):
        start = first_place(names, cell, accepted or {})
        rows = [{} if n < start else _finite(record, cell) for n, record in enumerate(records)]
        last = set(rows[-1]) if rows else set()
        seeds = next((last & row.keys() for row in rows[-2::-1] if last & row.keys()), last)
        for night, row in enumerate(rows):
            if seeds and seeds <= row.keys():
                table[night, column] = pooled(cell.metric, [row[seed] for seed in sorted(seeds)])
    return table


def first_place(names: Sequence[str], cell: CellKey, accepted: Mapping[CellKey, str]) -> int:
    """Return the index of the night, in the order of running, where a cell's series starts."""
    starts = {accepted[key] for key in (cell, CellKey(*cell.pair)) if key in accepted}
    return max((_place(names, night) for night in starts), default=0)


def _place(names: Sequence[str], night: str) -> int:
    """Return a night's index; if it is missing, the index of the next by date (0 if none)."""
    if night in names:
        return names.index(night)
    earlier = sum(name < night for name in names)
    return earlier if earlier < len(names) else 0


def _finite(record: NightRecord, cell: CellKey) -> dict[int, float]:
    allows = measure_of(cell.metric).allows
    return {seed: value for seed, value in record.cells.get(cell, {}).items() if allows(value)}


@dataclass(frozen=True)
class Step:
    """A change of a series to another level.

    Attributes:
        index: First night of the new level, counted from 0.
        before, after: Means of the nights between this step and the previous or next one.
        nights: Number of nights on the new level.
    """

    index: int
    before: float
    after: float
    nights: int


def find_steps(series: Floats, noise: float) -> tuple[Step, ...]:
    """Return the steps of a series, oldest first; a drift gives several steps.

    Source: Killick, Fearnhead and Eckley, Optimal Detection of Changepoints With a Linear
    Computational Cost, 2012, with the squared error, as implemented by ``ruptures``. A step must
    reduce the squared error by ``STEP_ERRORS`` squared times the variance.

    Args:
        series: Finite figures (T,) of T nights, oldest first.
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
    """Return the last step and the best earlier level, if the series has become worse.

    Args:
        series: Finite numbers (T,) of T nights, oldest first; larger is worse.
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
    large = last.after - best.before > max(threshold, STEP_ERRORS * error)
    # A single very bad night could move the mean, so the median must be worse as well.
    lasting = float(np.median(series[last.index :])) - best.before > threshold / 2
    tonight = series[-1] - best.before > threshold
    return (last, best.before) if large and lasting and tonight else None


def _lowest(series: Floats) -> float:
    """Return the lowest mean of any ``STEP_NIGHTS`` or more consecutive nights."""
    sums = np.cumsum(np.concatenate([[0.0], series]))
    lengths = range(STEP_NIGHTS, 2 * STEP_NIGHTS)
    return min(float((sums[nights:] - sums[:-nights]).min() / nights) for nights in lengths)
