"""The series of every cell over the nights, on the seeds that the nights have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.nightly._limits import measure_of
from orchestrator.nightly._record import CellKey, NightRecord

__all__ = ["first_night", "night_series", "pooled"]


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
) -> NDArray[np.float64]:
    """Return one figure a night and cell (T, C); NaN where there is none.

    Every night of a cell is taken over the same seeds: those of the last night that are also in the
    night before it that shares any. A night that lacks one of them is left out, and so are the
    nights before the one on which a cell was accepted.

    Args:
        records: Oldest first.
        cells: The columns.
        accepted: Night on which a change of a cell, or of all cells of its pair, was accepted.
    """
    table = np.full((len(records), len(cells)), np.nan)
    for column, cell in enumerate(cells):
        start = first_night(cell, accepted or {})
        rows = [_finite(record, cell) if record.night >= start else {} for record in records]
        seeds = _common_seeds(rows)
        for night, row in enumerate(rows):
            if seeds and seeds <= row.keys():
                table[night, column] = pooled(cell.metric, [row[seed] for seed in sorted(seeds)])
    return table


def first_night(cell: CellKey, accepted: Mapping[CellKey, str]) -> str:
    """Return the night on which the series of a cell starts; empty for the very first."""
    return max(accepted.get(cell, ""), accepted.get(CellKey(*cell.pair), ""))


def _finite(record: NightRecord, cell: CellKey) -> dict[int, float]:
    values = record.cells.get(cell, {})
    low = 0.0 if measure_of(cell.metric).ratio else -math.inf
    return {seed: value for seed, value in values.items() if low < value < math.inf}


def _common_seeds(rows: Sequence[Mapping[int, float]]) -> set[int]:
    if not rows:
        return set()
    last = set(rows[-1])
    for row in reversed(rows[:-1]):
        if last & row.keys():
            return last & row.keys()
    return last
