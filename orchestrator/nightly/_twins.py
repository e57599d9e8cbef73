"""Recipes that give the same figures to the last digit: a part of one is silently off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from orchestrator.nightly._limits import measure_of
from orchestrator.nightly._record import CellKey, NightRecord
from orchestrator.nightly._series import first_night
from orchestrator.nightly._verdict import Finding

__all__ = ["twin_findings"]

ROUNDING = 1e-5
"""Relative difference that single precision may leave between figures that are the same."""

Pair = tuple[str, str]
Figures = dict[tuple[str, int], float]


def twin_findings(
    records: Sequence[NightRecord], accepted: Mapping[CellKey, str]
) -> tuple[Finding, ...]:
    """Return the recipes that have come to equal another one on the same task.

    A loss, a mask or a calibrator that is switched off leaves the recipe without it, to the last
    digit. That may even look like an improvement, so that no control limit sees it. Of two recipes
    that have always been equal none is told.

    Args:
        records: Oldest first; the last one is judged.
        accepted: As ``judge`` takes it; here of cells without a metric.
    """
    figures = [_by_pair(record) for record in records]
    found: list[Finding] = []
    for one, other in combinations(figures[-1], 2):
        if one[1] == other[1] and _equal(figures[-1][one], figures[-1][other]):
            start = max(first_night(CellKey(*pair), accepted) for pair in (one, other))
            kept = [n for n, record in enumerate(records) if record.night >= start]
            found += _told(records, [(n, figures[n]) for n in kept], one, other)
    return tuple(found)


def _told(
    records: Sequence[NightRecord],
    nights: Sequence[tuple[int, dict[Pair, Figures]]],
    one: Pair,
    other: Pair,
) -> Iterator[Finding]:
    apart = [
        place
        for place, (_, night) in enumerate(nights)
        if one in night and other in night and not _equal(night[one], night[other])
    ]
    if not apart:
        return
    before, tonight = nights[apart[-1]][1], nights[-1][1]
    since = records[nights[apart[-1] + 1][0]].night
    moved = [pair for pair in (one, other) if not _equal(before[pair], tonight[pair])]
    for pair in moved:
        cell, same = CellKey(*pair), other if pair == one else one
        text = f"{cell} has the same figures as {same[0]} to the last digit, since {since}"
        yield Finding(cell, "hard", "twin", text, since=since)


def _by_pair(record: NightRecord) -> dict[Pair, Figures]:
    found: dict[Pair, Figures] = {}
    for cell, values in record.cells.items():
        if measure_of(cell.metric).family == "quality":
            figures = found.setdefault(cell.pair, {})
            figures.update({(cell.metric, seed): value for seed, value in values.items()})
    return found


def _equal(one: Figures, other: Figures) -> bool:
    """Return whether all figures are the same; accuracies alone may be so by chance."""
    if one.keys() != other.keys() or all(metric == "acc" for metric, _ in one):
        return False
    return all(math.isclose(one[key], other[key], rel_tol=ROUNDING) for key in one)
