"""How a night of another commit is told good from bad, by one figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.nightly.record import WHOLE_NIGHT, CellKey, Finding, NightRecord
from orchestrator.nightly.verdict.chart import Scales
from orchestrator.nightly.verdict.hard import hard_findings
from orchestrator.nightly.verdict.judge import comparable, levels
from orchestrator.nightly.verdict.limits import Limits, measure_of
from orchestrator.nightly.verdict.series import first_place, pooled
from orchestrator.nightly.verdict.stages import MOST, relative_times
from trainables.common.errors import InputError

CLEAR = 12.0  # Deviations between good and bad that need no further seed.
MOST_TIMES = 4  # In which a figure of quality is computed that varies by itself.
SURE = 100.0  # For figures that are either there or not.


@dataclass(frozen=True)
class Contrast:
    """The usual value of a figure and a bad one.

    Attributes:
        cell: Which figure.
        seeds: With which seeds it is measured.
        clear: Deviations of one night between usual and bad.
        badness: Returns where a night stands between usual (0) and bad (1); raises ``InputError``
            if it lacks the figure.
        times: How often a commit is computed at most until its state is told clearly.
    """

    cell: CellKey
    seeds: tuple[int, ...]
    clear: float
    badness: Callable[[NightRecord], float]
    times: int = 1


def contrast(
    records: Sequence[NightRecord],
    finding: Finding,
    limits: Limits,
    accepted: Mapping[CellKey, str],
) -> Contrast:
    """Return what tells good from bad for a finding about the last record.

    What one night alone is alarmed for is there or not. A stage that takes longer beside the others
    is told by nights of the whole benchmark. Any other figure has levels, and as few seeds as tell
    them ``CLEAR`` deviations apart, all of them if none do; then a figure of quality is computed
    several times. A machine that is busy stays so for a while, which no repetition of a cost helps.
    """
    if finding.kind == "hard":
        return _of_alarm(comparable(records), finding, limits)
    if finding.cell.pair == WHOLE_NIGHT:
        return _of_stage(comparable(records), finding, accepted)
    return _of_level(records, finding, limits, accepted)


def _of_alarm(records: Sequence[NightRecord], finding: Finding, limits: Limits) -> Contrast:
    def badness(record: NightRecord) -> float:
        found = hard_findings([*records[:-1], record], limits, {})
        return float((finding.cell, finding.reason) in {(f.cell, f.reason) for f in found})

    return Contrast(finding.cell, records[-1].shape.seeds, SURE, badness)


def _of_stage(
    records: Sequence[NightRecord], finding: Finding, accepted: Mapping[CellKey, str]
) -> Contrast:
    cell, names = finding.cell, [record.night for record in records]
    bad = names.index(finding.since)
    usual = max(first_place(names, cell, accepted), bad - MOST)
    times = relative_times(records, cell)
    shift = float(np.nanmean(times[bad:]) - np.nanmean(times[usual:bad]))
    noise = max(float(np.nanstd(times[usual:bad], ddof=1)), shift / SURE)

    def badness(record: NightRecord) -> float:
        times = relative_times([*records, record], cell)
        if not np.isfinite(times[-1]):
            raise InputError(f"{cell}: no figure")
        level = np.nanmean(times[usual:bad])
        return float((times[-1] - level) / (np.nanmean(times[bad:-1]) - level))

    return Contrast(cell, records[-1].shape.seeds, shift / noise, badness)


def _of_level(
    records: Sequence[NightRecord],
    finding: Finding,
    limits: Limits,
    accepted: Mapping[CellKey, str],
) -> Contrast:
    cell, seeds = finding.cell, tuple(records[-1].cells[finding.cell])
    for count in range(1, len(seeds) + 1):
        own = [_only(record, cell, seeds[:count]) for record in records]
        usual, bad, noise = levels(own, cell, limits, accepted, finding.since)
        clear = (bad - usual) / noise
        if clear >= CLEAR or count == len(seeds):
            break
    scales, used = Scales([cell.metric], limits), seeds[:count]

    def badness(record: NightRecord) -> float:
        values = record.cells.get(cell, {})
        if not set(used) <= values.keys():
            raise InputError(f"{cell}: {record.failed.get(cell.pair, 'no figure')}")
        figure = pooled(cell.metric, [values[seed] for seed in used])
        return (float(scales.worse(np.array([figure]))[0]) - usual) / (bad - usual)

    varies = clear < CLEAR and measure_of(cell.metric).family == "quality"
    return Contrast(cell, used, clear, badness, MOST_TIMES if varies else 1)


def _only(record: NightRecord, cell: CellKey, seeds: Sequence[int]) -> NightRecord:
    values = {s: v for s, v in record.cells.get(cell, {}).items() if s in seeds}
    return replace(record, cells={cell: values} if values else {})
