"""The series of every cell over the nights, and the steps and drifts in one of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import ruptures
from numpy.typing import NDArray

from orchestrator.nightly.record import CellKey, NightRecord
from orchestrator.nightly.verdict.limits import measure_of

STEP_NIGHTS = 5  # Fewest nights between two steps.
STEP_ERRORS = 6.0  # How many standard errors a step must have.

Floats = NDArray[np.float64]


def pooled(metric: str, values: Sequence[float]) -> float:
    """Return a night's figure over its seeds: their mean, or the best for times and speeds."""
    measure = measure_of(metric)
    if measure.best:
        return max(values) if measure.higher else min(values)
    return math.fsum(values) / len(values)


def night_series(
    records: Sequence[NightRecord],
    cells: Sequence[CellKey],
    accepted: Mapping[CellKey, str] | None = None,
) -> Floats:
    """Return one figure a night (oldest first) and cell (T, C); NaN where there is none.

    Every night of a cell is taken over the same seeds: those of the last night that are also in the
    night before it that shares any. A night that lacks one of them is left out, and so are the
    nights before the one on which a change of a cell, or of all cells of its pair, was accepted.
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
    """Return the place, among nights in the order of running, where a cell's series starts."""
    starts = {accepted[key] for key in (cell, CellKey(*cell.pair)) if key in accepted}
    return max((_place(names, night) for night in starts), default=0)


def _place(names: Sequence[str], night: str) -> int:
    """Return where a night stands; by its date if it is gone, first if that is later than all."""
    if night in names:
        return names.index(night)
    earlier = sum(name < night for name in names)
    return earlier if earlier < len(names) else 0


def _finite(record: NightRecord, cell: CellKey) -> dict[int, float]:
    allows = measure_of(cell.metric).allows
    return {seed: value for seed, value in record.cells.get(cell, {}).items() if allows(value)}


@dataclass(frozen=True)
class Step:
    """Where a series went to another level, and the levels on both sides.

    Attributes:
        index: First night of the new level, counted from 0.
        before, after: Means of the nights from the step before, and of those to the next.
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

    Args:
        series: Finite numbers (T,), oldest first; larger is worse.
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
    # One night alone may be so bad that it moves the mean.
    most = float(np.median(series[last.index :])) - best.before > threshold / 2
    tonight = series[-1] - best.before > threshold
    return (last, best.before) if far and most and tonight else None


def _lowest(series: Floats) -> float:
    """Return the lowest mean of as many nights in a row as a level has at least."""
    sums = np.cumsum(np.concatenate([[0.0], series]))
    lengths = range(STEP_NIGHTS, 2 * STEP_NIGHTS)
    return min(float((sums[nights:] - sums[:-nights]).min() / nights) for nights in lengths)
