"""Judge a night by comparing it with earlier nights."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.special import ndtr, stdtr

from orchestrator.nightly.record import (
    MISSING,
    WHOLE_NIGHT,
    CellKey,
    Finding,
    NightRecord,
    Status,
    Verdict,
)
from orchestrator.nightly.verdict.chart import Chart, Judged
from orchestrator.nightly.verdict.hard import hard_findings
from orchestrator.nightly.verdict.limits import Limits
from orchestrator.nightly.verdict.series import STEP_NIGHTS, night_series, worse_step
from orchestrator.nightly.verdict.stages import stage_findings
from trainables.common.words import have

FEW_NIGHTS = 5  # With a shorter history the verdict says that the noise is assumed.
STEP_WINDOW = 90  # Number of last nights in which steps and drifts are searched for.
STEP_PLAY = 2  # A step's causes are searched in this many nights before and after it.


def judge(
    history: Sequence[NightRecord],
    tonight: NightRecord,
    limits: Limits | None = None,
    accepted: Mapping[CellKey, str] | None = None,
) -> Verdict:
    """Compare a night with earlier ones.

    One night is enough for an alarm about a failed recipe, missing or unexpected results, a figure
    that is not finite (or a cost that is not above 0), a bound of ``limits.hard``, and a recipe
    that has become equal to another one. All other alarms need a difference outside the control
    limits and above the practical threshold on two nights in a row, a step or drift in the series
    that exceeds noise and threshold, or a stage that became slower relative to the others.
    Improvements are reported but raise no alarm.

    Only figures with tonight's definition of a recipe and task are compared. The verdict does not
    depend on earlier verdicts: earlier nights are judged again, so that bad ones never become the
    usual level.

    Args:
        history: Earlier nights, oldest first; a night with tonight's name is ignored.
        tonight: The night to judge.
        limits: Thresholds and bounds; by default those of ``Limits``.
        accepted: Night at which the series of a cell restarts because of an intended change. A cell
            without a metric covers all metrics of its recipe and task.

    Raises:
        ValueError: If a metric is unknown.
    """
    limits = limits or Limits()
    before = [record for record in history if record.night != tonight.night]
    redefined = _redefined(before, tonight)
    records = comparable([*before, tonight])
    hard = _caused(hard_findings(records, limits, accepted or {}), records)
    series = _Comparison(records, limits, accepted or {})
    stages = _caused(stage_findings(records, limits, accepted or {}), records)
    alarms = (*hard, *_without(series.alarms(), hard), *stages)
    suspicions = _without(series.suspicions(), alarms)
    status = _status(alarms, suspicions)
    named = ", ".join(map(str, redefined))
    changed = (f"redefined in the benchmark since the night before: {named}",)
    return Verdict(
        tonight.night,
        "not comparable" if redefined and status == "ok" else status,
        alarms,
        suspicions,
        _without(series.improvements(), alarms),
        (*(changed if redefined else ()), *series.notes()),
    )


def detectable(
    records: Sequence[NightRecord],
    limits: Limits | None = None,
    accepted: Mapping[CellKey, str] | None = None,
) -> dict[CellKey, tuple[float, float]]:
    """Return for each cell the expected figure, and the nearest worse figure that is detected.

    Nine in ten changes to that figure raise an alarm on their second night. ``records`` are oldest
    first. Cells are those of the last record that have ``FEW_NIGHTS`` or more good nights before.
    """
    return _Comparison(comparable(records), limits or Limits(), accepted or {}).detectable()


def levels(
    records: Sequence[NightRecord],
    cell: CellKey,
    limits: Limits,
    accepted: Mapping[CellKey, str],
    since: str,
) -> tuple[float, float, float]:
    """Return a cell's means before and since a night, and the standard deviation of one night.

    They are on the scale of ``Scales.worse``; the first is the mean of up to ``limits.window``
    nights.
    """
    return _Comparison(comparable(records), limits, accepted, (cell,)).levels(since)


def _caused(findings: Iterable[Finding], records: Sequence[NightRecord]) -> tuple[Finding, ...]:
    """Add to each finding the changes of the environment on its first night."""
    names = [record.night for record in records]
    starts = ((found, names.index(found.since)) for found in findings)
    return tuple(
        replace(found, causes=changes(records[max(0, start - 1) : start + 1]))
        for found, start in starts
    )


def _without(findings: Sequence[Finding], reported: Sequence[Finding]) -> tuple[Finding, ...]:
    cells = {finding.cell for finding in reported}
    return tuple(finding for finding in findings if finding.cell not in cells)


def _status(alarms: Sequence[Finding], suspicions: Sequence[Finding]) -> Status:
    if not alarms:
        return "suspicious" if suspicions else "ok"
    return "incomplete" if all(alarm.reason in MISSING for alarm in alarms) else "regression"


def comparable(records: Sequence[NightRecord]) -> list[NightRecord]:
    """Drop from each night the recipes and tasks that the last night defines differently."""
    kept = []
    for night in records:
        pairs = {cell.pair for cell in night.cells if not records[-1].comparable(night, cell.pair)}
        cells = {cell: v for cell, v in night.cells.items() if cell.pair not in pairs}
        kept.append(replace(night, cells=cells) if pairs else night)
    return kept


def _redefined(history: Sequence[NightRecord], tonight: NightRecord) -> list[CellKey]:
    """Return the pairs of recipe and task that were redefined since the night before."""
    before = {cell.pair for cell in history[-1].cells} if history else set()
    known = dict.fromkeys(cell.pair for cell in tonight.cells if cell.pair != WHOLE_NIGHT)
    return [
        CellKey(*pair)
        for pair in known
        if pair in before and not tonight.comparable(history[-1], pair)
    ]


def changes(records: Sequence[NightRecord]) -> tuple[str, ...]:
    """Return the changes of the environment from each night to the next, oldest first."""
    found = []
    for before, after in pairwise(records):
        for name in sorted({*before.environment, *after.environment}):
            old, new = before.environment.get(name), after.environment.get(name)
            if old != new:
                found.append(f"{name}: {old or 'none'} -> {new or 'none'} ({after.night})")
    return tuple(found)


class _Comparison:
    """Judges the series of some cells (by default all of the last record) night by night."""

    def __init__(
        self,
        records: Sequence[NightRecord],
        limits: Limits,
        accepted: Mapping[CellKey, str],
        cells: tuple[CellKey, ...] = (),
    ) -> None:
        cells = cells or tuple(cell for cell, values in records[-1].cells.items() if values)
        self._records, self._cells = records, cells
        self._names, self._window = [record.night for record in records], limits.window
        self._chart = Chart([cell.metric for cell in cells], limits)
        self._worse = self._chart.scales.worse(night_series(records, cells, accepted))
        self._judged: Judged = [self._chart.advance(night) for night in self._worse][-1]

    def alarms(self) -> tuple[Finding, ...]:
        """Return findings on cells worse on two nights in a row, or worse by a step or drift."""
        twice = [self._alarm(column) for column in np.flatnonzero(self._chart.alarmed).tolist()]
        rest = np.flatnonzero(~self._chart.alarmed & np.isfinite(self._worse[-1])).tolist()
        return (*twice, *filter(None, map(self._step, rest)))

    def suspicions(self) -> tuple[Finding, ...]:
        """Return findings on cells that are worse tonight but were not on the night before."""
        columns = np.flatnonzero(self._judged.worse & ~self._chart.alarmed).tolist()
        return tuple(self._finding(column, "is worse, for one night so far") for column in columns)

    def improvements(self) -> tuple[Finding, ...]:
        """Return findings on cells that were better on two nights in a row."""
        columns = np.flatnonzero(self._chart.improved).tolist()
        return tuple(self._finding(column, "is better") for column in columns)

    def notes(self) -> tuple[str, ...]:
        """Return notes that count the series with no or few earlier nights."""
        nights = self._judged.nights
        new, young = int((nights == 0).sum()), int(((nights > 0) & (nights < FEW_NIGHTS)).sum())
        notes = {
            "no earlier night: only hard limits were checked": new,
            f"fewer than {FEW_NIGHTS} earlier nights: their noise is assumed from their "
            "thresholds": young,
        }
        cells = len(self._cells)
        return tuple(f"{n} of {cells} cells {have(n)} {text}" for text, n in notes.items() if n)

    def detectable(self) -> dict[CellKey, tuple[float, float]]:
        """Return expected and detectable figures in the metric's unit; see ``detectable``."""
        expected, away = self._judged.expected, self._chart.detectable(self._judged)
        return {
            cell: (self._figure(n, expected[n]), self._figure(n, expected[n] + away[n]))
            for n, cell in enumerate(self._cells)
            if self._judged.nights[n] >= FEW_NIGHTS
        }

    def levels(self, since: str) -> tuple[float, float, float]:
        """Return the figures of the first cell; see the function ``levels``."""
        start, series = self._names.index(since), self._worse[:, 0]
        before, after = series[:start], series[start:]
        usual = before[np.isfinite(before)][-self._window :]
        return float(usual.mean()), float(np.nanmean(after)), float(self._judged.noise[0])

    def _alarm(self, column: int) -> Finding:
        since = int(self._chart.since[column])
        step = self._step(column, STEP_NIGHTS + 1)
        if step and step.since in (record.night for record in self._records[:since]):
            return step
        nights = int(np.isfinite(self._worse[since:, column]).sum())
        return self._finding(column, f"is worse, {nights} nights in a row")

    def _finding(self, column: int, text: str) -> Finding:
        since = int(self._chart.since[column])
        earlier = np.flatnonzero(np.isfinite(self._worse[:since, column]))
        found = Finding(
            self._cells[column],
            "soft",
            "nights",
            text,
            nights=int(self._judged.nights[column]),
            since=self._records[since].night,
            causes=changes(self._records[int(earlier[-1]) : since + 1]),
            chance=self._chance(column),
        )
        return self._described(found, column, float(self._judged.expected[column]))

    def _chance(self, column: int) -> float:
        """Return the probability that noise alone moves a night this far in this direction."""
        judged = self._judged
        away = abs(float(self._worse[-1, column] - judged.expected[column]))
        return float(stdtr(judged.freedom[column], -away / judged.spread[column]))

    def _step(self, column: int, least: int = STEP_NIGHTS) -> Finding | None:
        """Return a finding if a step or drift made a cell worse, ``least`` or more nights ago."""
        nights = np.flatnonzero(np.isfinite(self._worse[:, column]))[-STEP_WINDOW:]
        series, threshold = self._worse[nights, column], self._judged.threshold[column]
        found = worse_step(series, float(self._judged.noise[column]), float(threshold))
        if found is None or found[0].nights < least:
            return None
        step, expected = found
        error = float(self._judged.noise[column]) * math.sqrt(1 / step.nights + 1 / step.index)
        near = nights[max(0, step.index - STEP_PLAY - 1) : step.index + STEP_PLAY + 1]
        finding = Finding(
            self._cells[column],
            "soft",
            "step",
            "has become worse by a step or drift",
            nights=step.index,
            since=self._records[int(nights[step.index])].night,
            causes=changes([self._records[night] for night in near]),
            chance=float(ndtr(-(step.after - expected) / error)),
        )
        return self._described(finding, column, expected)

    def _described(self, found: Finding, column: int, level: float) -> Finding:
        """Add figures to a finding; ``level`` is the expectation on ``Scales.worse``."""
        value = self._figure(column, float(self._worse[-1, column]))
        expected = self._figure(column, level)
        width = float(self._judged.half_width()[column])
        lower, upper = sorted(self._figure(column, level + side * width) for side in (-1, 1))
        beyond = self._figure(column, level + float(self._judged.threshold[column]))
        gap = f"{value:.6g} instead of {expected:.6g}, since {found.since}"
        return replace(
            found,
            text=f"{found.cell} {found.text}: {gap}",
            value=value,
            expected=expected,
            lower=lower,
            upper=upper,
            threshold=abs(beyond - expected),
        )

    def _figure(self, column: int, worse: float) -> float:
        row = np.full(len(self._cells), np.nan)
        row[column] = worse
        return float(self._chart.scales.figures(row)[column])
