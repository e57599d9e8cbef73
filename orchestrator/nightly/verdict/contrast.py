"""How a night of another commit is told good from bad, by one figure."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.nightly.record import WHOLE_NIGHT, CellKey, Finding, NightRecord
from orchestrator.nightly.verdict.chart import Scales
from orchestrator.nightly.verdict.hard import hard_findings
from orchestrator.nightly.verdict.judge import Levels, comparable, levels
from orchestrator.nightly.verdict.limits import Limits
from orchestrator.nightly.verdict.series import first_place, pooled
from orchestrator.nightly.verdict.stages import MOST, relative_times
from trainables.common.errors import InputError

CLEAR = 12.0  # Deviations between good and bad that need no further seed.
SURE = 100.0  # Of what is either there or not.


@dataclass(frozen=True)
class Contrast(ABC):
    """What is usual of a figure and what is bad.

    Attributes:
        cell: Which figure.
        seeds: With which seeds it is measured.
        clear: Deviations of one night between usual and bad.
    """

    cell: CellKey
    seeds: tuple[int, ...]
    clear: float

    @abstractmethod
    def badness(self, record: NightRecord) -> float:
        """Return where a night stands between usual (0) and bad (1).

        Raises:
            InputError: If it lacks the figure.
        """


@dataclass(frozen=True)
class LevelContrast(Contrast):
    """A figure that has become worse; levels are on the scale of ``Scales.worse``."""

    usual: float
    bad: float
    scales: Scales

    def badness(self, record: NightRecord) -> float:
        """Return where its figure lies."""
        values = record.cells.get(self.cell, {})
        if not set(self.seeds) <= values.keys():
            reason = record.failed.get(self.cell.pair, "no figure")
            raise InputError(f"{self.cell}: {reason}")
        figure = pooled(self.cell.metric, [values[seed] for seed in self.seeds])
        worse = float(self.scales.worse(np.array([figure]))[0])
        return (worse - self.usual) / (self.bad - self.usual)


@dataclass(frozen=True)
class HardContrast(Contrast):
    """Something that one night alone is alarmed for: it is there or not."""

    reason: str
    history: tuple[NightRecord, ...]
    limits: Limits

    def badness(self, record: NightRecord) -> float:
        """Return 1.0 if the night is alarmed for the same reason, else 0.0."""
        found = hard_findings([*self.history, record], self.limits, {})
        return float(any((f.cell, f.reason) == (self.cell, self.reason) for f in found))


@dataclass(frozen=True)
class StageContrast(Contrast):
    """A stage that takes longer beside the others: nights of the whole benchmark tell it.

    Attributes:
        usual, bad: The night's number in ``history`` from which on figures are usual, and bad.
    """

    usual: int
    bad: int
    history: tuple[NightRecord, ...]

    def badness(self, record: NightRecord) -> float:
        """Return where its time beside the other stages lies."""
        times = relative_times([*self.history, record], self.cell)
        if not np.isfinite(times[-1]):
            raise InputError(f"{self.cell}: no figure")
        usual = np.nanmean(times[self.usual : self.bad])
        return float((times[-1] - usual) / (np.nanmean(times[self.bad : -1]) - usual))


def contrast(
    records: Sequence[NightRecord],
    finding: Finding,
    limits: Limits,
    accepted: Mapping[CellKey, str],
) -> Contrast:
    """Return what tells good from bad for a finding about the last record.

    With as few seeds as tell them ``CLEAR`` deviations apart, all of them if none do.
    """
    cell, tonight = finding.cell, records[-1]
    if finding.kind == "hard":
        before = tuple(comparable(records)[:-1])
        return HardContrast(cell, tonight.shape.seeds, SURE, finding.reason, before, limits)
    if cell.pair == WHOLE_NIGHT:
        return _stage_contrast(comparable(records), finding, accepted)
    scales, seeds = Scales([cell.metric], limits), tuple(tonight.cells[cell])
    for count in range(1, len(seeds) + 1):
        own = [_only(record, cell, seeds[:count]) for record in records]
        found: Levels = levels(own, cell, limits, accepted, finding.since)
        clear = (found.bad - found.usual) / found.noise
        if clear >= CLEAR or count == len(seeds):
            break
    return LevelContrast(cell, seeds[:count], clear, found.usual, found.bad, scales)


def _stage_contrast(
    records: Sequence[NightRecord], finding: Finding, accepted: Mapping[CellKey, str]
) -> StageContrast:
    names = [record.night for record in records]
    bad = names.index(finding.since)
    usual = max(first_place(names, finding.cell, accepted), bad - MOST)
    times = relative_times(records, finding.cell)
    shift = float(np.nanmean(times[bad:]) - np.nanmean(times[usual:bad]))
    noise = max(float(np.nanstd(times[usual:bad], ddof=1)), shift / SURE)
    seeds, clear = records[-1].shape.seeds, shift / noise
    return StageContrast(finding.cell, seeds, clear, usual, bad, tuple(records))


def _only(record: NightRecord, cell: CellKey, seeds: Sequence[int]) -> NightRecord:
    values = {s: v for s, v in record.cells.get(cell, {}).items() if s in seeds}
    return replace(record, cells={cell: values} if values else {})
