"""Find faults for which a single night is enough to raise the alarm."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

from orchestrator.nightly.record import WHOLE_NIGHT, CellKey, Finding, NightRecord, Reason
from orchestrator.nightly.verdict.limits import Limits, measure_of
from orchestrator.nightly.verdict.series import first_place, pooled

ROUNDING = 1e-5  # Relative difference that single precision leaves between equal figures.

Pair = tuple[str, str]
Figures = dict[tuple[str, int], float]


def hard_findings(
    records: Sequence[NightRecord], limits: Limits, accepted: Mapping[CellKey, str]
) -> tuple[Finding, ...]:
    """Judge the last record (oldest first) by rules that do not need control limits.

    Found are failed recipes, missing and unexpected results, impossible values, violated bounds,
    and twins: recipes whose figures have become equal to those of another recipe on the same task.
    A loss, a mask or a calibrator that is switched off by mistake makes its recipe a twin. That may
    look like an improvement, which control limits do not report as a fault. Recipes that were
    always equal are fine.
    """
    tonight = records[-1]
    single = (*_failures(tonight), *_missing(tonight), *_surplus(tonight))
    return (*single, *_figures(tonight, limits), *_twins(records, accepted))


def _hard(record: NightRecord, cell: CellKey, reason: Reason, text: str) -> Finding:
    return Finding(cell, "hard", reason, text, since=record.night)


def _failures(record: NightRecord) -> Iterator[Finding]:
    for (recipe, task), reason in record.failed.items():
        cell = CellKey(recipe, task)
        yield _hard(record, cell, "failed", f"{cell} failed: {reason}")


def _missing(record: NightRecord) -> Iterator[Finding]:
    shape = record.shape
    for pair in product(shape.recipes, shape.tasks):
        if pair in record.failed:
            continue
        missing = []
        for metric in shape.metrics:
            values = record.cells.get(CellKey(*pair, metric), {})
            seeds = [str(seed) for seed in shape.seeds if seed not in values]
            if seeds:
                missing.append(f"{metric} of seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}")
        if missing:
            cell = CellKey(*pair)
            yield _hard(record, cell, "missing", f"{cell} lacks {', '.join(missing)}")


def _surplus(record: NightRecord) -> Iterator[Finding]:
    expected = {*product(record.shape.recipes, record.shape.tasks)}
    found = dict.fromkeys(cell.pair for cell in record.cells)
    for pair in found if expected else ():
        if pair not in expected and pair != WHOLE_NIGHT:
            cell = CellKey(*pair)
            yield _hard(record, cell, "unexpected", f"{cell} is not in the nightly file")


def _figures(record: NightRecord, limits: Limits) -> Iterator[Finding]:
    for cell, values in record.cells.items():
        allows = measure_of(cell.metric).allows
        wrong = {seed: value for seed, value in values.items() if not allows(value)}
        if wrong:
            listed = ", ".join(f"{value:g} (seed {seed})" for seed, value in wrong.items())
            yield _hard(record, cell, "not finite", f"{cell} is {listed}")
        elif values:
            yield from _bound(record, cell, limits)


def _bound(record: NightRecord, cell: CellKey, limits: Limits) -> Iterator[Finding]:
    bounds = limits.bounds(cell.metric)
    if bounds is None:
        return
    value = pooled(cell.metric, list(record.cells[cell].values()))
    low, high = bounds.min, bounds.max
    below, above = low is not None and value < low, high is not None and value > high
    if below or above:
        side = f"below the limit of {low:g}" if below else f"above the limit of {high:g}"
        found = _hard(record, cell, "limit", f"{cell} is {value:.6g}, {side}")
        yield replace(found, value=value, lower=low, upper=high)


def _twins(records: Sequence[NightRecord], accepted: Mapping[CellKey, str]) -> Iterator[Finding]:
    nights, names = [_quality(record) for record in records], [record.night for record in records]
    for one, other in combinations(nights[-1], 2):
        if one[1] == other[1] and _equal(nights[-1][one], nights[-1][other]):
            start = max(first_place(names, CellKey(*pair), accepted) for pair in (one, other))
            yield from _grown_equal(names[start:], nights[start:], one, other)


def _grown_equal(
    names: Sequence[str], nights: Sequence[Mapping[Pair, Figures]], one: Pair, other: Pair
) -> Iterator[Finding]:
    apart = [
        place
        for place, night in enumerate(nights)
        if one in night and other in night and not _equal(night[one], night[other])
    ]
    if not apart:
        return
    before, tonight, since = nights[apart[-1]], nights[-1], names[apart[-1] + 1]
    for pair, same in ((one, other), (other, one)):
        if not _equal(before[pair], tonight[pair]):
            cell = CellKey(*pair)
            text = f"{cell} has the same figures as {same[0]} to the last digit, since {since}"
            yield Finding(cell, "hard", "twin", text, since=since)


def _quality(record: NightRecord) -> dict[Pair, Figures]:
    found: dict[Pair, Figures] = {}
    for cell, values in record.cells.items():
        if measure_of(cell.metric).family == "quality":
            own = {(cell.metric, seed): value for seed, value in values.items()}
            found.setdefault(cell.pair, {}).update(own)
    return found


def _equal(one: Figures, other: Figures) -> bool:
    """Return True if all figures are equal and not only accuracies, which may agree by chance."""
    if one.keys() != other.keys() or all(m.rsplit("/", 1)[-1] == "acc" for m, _ in one):
        return False
    return all(math.isclose(one[key], other[key], rel_tol=ROUNDING) for key in one)
