"""What one night alone is enough to raise the alarm for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.nightly._limits import Limits, measure_of
from orchestrator.nightly._record import CellKey, NightRecord
from orchestrator.nightly._series import pooled
from orchestrator.nightly._verdict import Finding

__all__ = ["WHOLE_NIGHT", "hard_findings"]

WHOLE_NIGHT = ("*", "*")
"""Recipe and task of figures of the whole night, which are in no table."""


def hard_findings(record: NightRecord, limits: Limits) -> tuple[Finding, ...]:
    """Return failed recipes, holes in the table, what is not finite, and what breaks a bound."""
    return (*_failures(record), *_holes(record), *_surplus(record), *_figures(record, limits))


def _hard(record: NightRecord, cell: CellKey, reason: str, text: str) -> Finding:
    return Finding(cell, "hard", reason, text, since=record.night)


def _failures(record: NightRecord) -> Iterator[Finding]:
    for (recipe, task), reason in record.failed.items():
        cell = CellKey(recipe, task)
        yield _hard(record, cell, "failed", f"{cell} failed: {reason}")


def _holes(record: NightRecord) -> Iterator[Finding]:
    shape = record.shape
    for pair in [(recipe, task) for recipe in shape.recipes for task in shape.tasks]:
        if pair in record.failed:
            continue
        missing = []
        for metric in shape.metrics:
            values = record.cells.get(CellKey(*pair, metric), {})
            seeds = [str(seed) for seed in shape.seeds if seed not in values]
            if seeds:
                missing.append(f"{metric} of {_seeds(seeds)}")
        if missing:
            cell = CellKey(*pair)
            yield _hard(record, cell, "missing", f"{cell} lacks {', '.join(missing)}")


def _seeds(seeds: list[str]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"


def _surplus(record: NightRecord) -> Iterator[Finding]:
    shape = record.shape
    expected = {(recipe, task) for recipe in shape.recipes for task in shape.tasks}
    found = dict.fromkeys(cell.pair for cell in record.cells)
    for pair in found if expected else ():
        if pair not in expected and pair != WHOLE_NIGHT:
            cell = CellKey(*pair)
            yield _hard(record, cell, "unexpected", f"{cell} is not in the nightly file")


def _figures(record: NightRecord, limits: Limits) -> Iterator[Finding]:
    for cell, values in record.cells.items():
        wrong = {seed: value for seed, value in values.items() if not _is_figure(cell, value)}
        if wrong:
            listed = ", ".join(f"{value:g} (seed {seed})" for seed, value in wrong.items())
            yield _hard(record, cell, "not finite", f"{cell} is {listed}")
        elif values:
            yield from _bound(record, cell, limits)


def _is_figure(cell: CellKey, value: float) -> bool:
    return math.isfinite(value) and (value > 0 or not measure_of(cell.metric).ratio)


def _bound(record: NightRecord, cell: CellKey, limits: Limits) -> Iterator[Finding]:
    bounds = limits.bounds(cell.metric)
    if bounds is None:
        return
    value = pooled(cell.metric, list(record.cells[cell].values()))
    low, high = bounds.min, bounds.max
    below, above = low is not None and value < low, high is not None and value > high
    if below or above:
        side = f"below the limit of {low:g}" if below else f"above the limit of {high:g}"
        yield Finding(
            cell,
            "hard",
            "limit",
            f"{cell} is {value:.6g}, {side}",
            value=value,
            lower=low,
            upper=high,
            since=record.night,
        )
