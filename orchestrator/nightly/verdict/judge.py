"""The verdict: tonight against the nights before."""

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

FEW_NIGHTS = 5  # With fewer of history the verdict says that noise is assumed, not measured.
STEP_WINDOW = 90  # Nights in which steps and drifts are searched for.
STEP_PLAY = 2  # Nights by which a step may seem early or late, when its causes are named.


def judge(
    history: Sequence[NightRecord],
    tonight: NightRecord,
    limits: Limits | None = None,
    accepted: Mapping[CellKey, str] | None = None,
) -> Verdict:
    """Compare a night with those before it.

    One night is enough for a failed recipe, a table of the wrong shape, a figure that is not
    finite, a bound of ``limits.hard``, and a recipe that has come to equal another one to the last
    digit. Everything else needs a difference outside the control limits and above the practical
    threshold on two nights in a row, or a step or drift of that size in the series, or a stage that
    takes longer beside the others. Improvements are told, never alarmed.

    Figures of a recipe and task that the benchmark defined otherwise are not compared: its series
    begins with the definition of tonight.

    The verdict depends on the records alone: earlier nights are judged again on the way, so that
    the bad ones among them never become the usual level.

    Args:
        history: The nights before, oldest first; one of tonight's name is left out.
        tonight: The night to be judged.
        limits: Thresholds and bounds; the shipped ones if left out.
        accepted: Night from which on a change of a cell is intended; its series starts there. A
            cell without a metric stands for all cells of its pair.

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
    changed = (f"the benchmark computes otherwise than the night before: {named}",)
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
    """Return the expectation of each cell, and from which figure on a change is mostly caught.

    Of changes of that size nine in ten are in alarm on their second night. Of the records, oldest
    first, the last one says which cells there are; those with fewer than ``FEW_NIGHTS`` nights are
    left out.
    """
    return _Comparison(comparable(records), limits or Limits(), accepted or {}).detectable()


def levels(
    records: Sequence[NightRecord],
    cell: CellKey,
    limits: Limits,
    accepted: Mapping[CellKey, str],
    since: str,
) -> tuple[float, float, float]:
    """Return means before and since a night, and a night's deviation, on ``Scales.worse``."""
    return _Comparison(comparable(records), limits, accepted, (cell,)).levels(since)


def _caused(findings: Iterable[Finding], records: Sequence[NightRecord]) -> tuple[Finding, ...]:
    """Return findings with what changed on the nights that they are of."""
    names = [record.night for record in records]
    starts = ((found, names.index(found.since)) for found in findings)
    return tuple(
        replace(found, causes=changes(records[max(0, start - 1) : start + 1]))
        for found, start in starts
    )


def _without(findings: Sequence[Finding], told: Sequence[Finding]) -> tuple[Finding, ...]:
    cells = {finding.cell for finding in told}
    return tuple(finding for finding in findings if finding.cell not in cells)


def _status(alarms: Sequence[Finding], suspicions: Sequence[Finding]) -> Status:
    if not alarms:
        return "suspicious" if suspicions else "ok"
    return "incomplete" if all(alarm.reason in MISSING for alarm in alarms) else "regression"


def comparable(records: Sequence[NightRecord]) -> list[NightRecord]:
    """Return nights without figures of what the last one computes otherwise."""
    kept = []
    for night in records:
        pairs = {cell.pair for cell in night.cells if not records[-1].comparable(night, cell.pair)}
        cells = {cell: v for cell, v in night.cells.items() if cell.pair not in pairs}
        kept.append(replace(night, cells=cells) if pairs else night)
    return kept


def _redefined(history: Sequence[NightRecord], tonight: NightRecord) -> list[CellKey]:
    """Return the pairs that the benchmark defined otherwise on the night before."""
    before = {cell.pair for cell in history[-1].cells} if history else set()
    known = dict.fromkeys(cell.pair for cell in tonight.cells if cell.pair != WHOLE_NIGHT)
    return [
        CellKey(*pair)
        for pair in known
        if pair in before and not tonight.comparable(history[-1], pair)
    ]


def changes(records: Sequence[NightRecord]) -> tuple[str, ...]:
    """Return what changed in the environment from each night to the next, oldest first."""
    found = []
    for before, after in pairwise(records):
        for name in sorted({*before.environment, *after.environment}):
            old, new = before.environment.get(name), after.environment.get(name)
            if old != new:
                found.append(f"{name}: {old or 'none'} -> {new or 'none'} ({after.night})")
    return tuple(found)


class _Comparison:
    """The series of some cells up to tonight, of all that it has by default, night by night."""

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
        """Return the cells that were worse on two nights in a row, or have a step or a drift."""
        twice = [self._alarm(column) for column in np.flatnonzero(self._chart.alarmed).tolist()]
        rest = np.flatnonzero(~self._chart.alarmed & np.isfinite(self._worse[-1])).tolist()
        return (*twice, *filter(None, map(self._step, rest)))

    def suspicions(self) -> tuple[Finding, ...]:
        """Return the cells that are worse tonight for the first time."""
        columns = np.flatnonzero(self._judged.worse & ~self._chart.alarmed).tolist()
        return tuple(self._finding(column, "is worse, for one night so far") for column in columns)

    def improvements(self) -> tuple[Finding, ...]:
        """Return what has become better, on two nights in a row."""
        columns = np.flatnonzero(self._chart.improved).tolist()
        return tuple(self._finding(column, "is better") for column in columns)

    def notes(self) -> tuple[str, ...]:
        """Return how little is known of young series."""
        nights = self._judged.nights
        new, young = int((nights == 0).sum()), int(((nights > 0) & (nights < FEW_NIGHTS)).sum())
        notes = {
            "no night to compare with: they were held to hard limits alone": new,
            f"fewer than {FEW_NIGHTS} nights to compare with: how much they vary is assumed from "
            "their thresholds": young,
        }
        cells = len(self._cells)
        return tuple(f"{n} of {cells} cells have {text}" for text, n in notes.items() if n)

    def detectable(self) -> dict[CellKey, tuple[float, float]]:
        """Return the expected figure and the one that would mostly be caught, in its unit."""
        expected, away = self._judged.expected, self._chart.detectable(self._judged)
        return {
            cell: (self._figure(n, expected[n]), self._figure(n, expected[n] + away[n]))
            for n, cell in enumerate(self._cells)
            if self._judged.nights[n] >= FEW_NIGHTS
        }

    def levels(self, since: str) -> tuple[float, float, float]:
        """Return the first cell's means before and since a night, and a night's deviation."""
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
        """Return how often noise alone would move a night as far, to this side."""
        judged = self._judged
        away = abs(float(self._worse[-1, column] - judged.expected[column]))
        return float(stdtr(judged.freedom[column], -away / judged.spread[column]))

    def _step(self, column: int, least: int = STEP_NIGHTS) -> Finding | None:
        """Return the finding of a step or a drift, at least ``least`` nights ago."""
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
            "has become worse in its series",
            nights=step.index,
            since=self._records[int(nights[step.index])].night,
            causes=changes([self._records[night] for night in near]),
            chance=float(ndtr(-(step.after - expected) / error)),
        )
        return self._described(finding, column, expected)

    def _described(self, found: Finding, column: int, level: float) -> Finding:
        """Return a finding with figures, the level it is held against on ``Scales.worse``."""
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
