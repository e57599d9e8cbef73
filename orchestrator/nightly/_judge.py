"""The verdict: tonight against the nights before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.nightly._chart import Chart, Judged
from orchestrator.nightly._hard import hard_findings
from orchestrator.nightly._limits import Limits
from orchestrator.nightly._record import CellKey, NightRecord
from orchestrator.nightly._series import night_series
from orchestrator.nightly._steps import STEP_NIGHTS, worse_step
from orchestrator.nightly._twins import twin_findings
from orchestrator.nightly._verdict import Finding, Verdict

__all__ = ["FEW_NIGHTS", "STEP_WINDOW", "changes", "judge"]

FEW_NIGHTS = 5
"""Below so many nights of history the verdict says that noise is assumed rather than measured."""
STEP_WINDOW = 90
"""Nights in which steps and drifts are searched for."""
STEP_PLAY = 2
"""Nights by which the place of a step among noisy nights may be wrong, when causes are named."""

Floats = NDArray[np.float64]


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
    threshold on two nights in a row, or a step or drift of that size in the series. What is better
    is told, never alarmed.

    The verdict depends on the records alone: earlier nights are judged again on the way, so that
    the bad ones among them never become what is usual.

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
    records = [*(record for record in history if record.night != tonight.night), tonight]
    hard = tuple(
        replace(finding, causes=_causes(records, finding.since))
        for finding in (*hard_findings(tonight, limits), *twin_findings(records, accepted or {}))
    )
    cells = tuple(cell for cell, values in tonight.cells.items() if values)
    series = _Comparison(records, cells, limits, accepted or {})
    alarms = (*hard, *_without(series.alarms(), hard))
    suspicions = _without(series.suspicions(), alarms)
    return Verdict(
        tonight.night,
        _status(alarms, suspicions),
        alarms,
        suspicions,
        _without(series.improvements(), alarms),
        series.notes(),
    )


def _causes(records: Sequence[NightRecord], since: str) -> tuple[str, ...]:
    """Return what changed on the night ``since``."""
    place = [record.night for record in records].index(since)
    return changes(records[max(0, place - 1) : place + 1])


def _without(findings: Sequence[Finding], told: Sequence[Finding]) -> tuple[Finding, ...]:
    cells = {finding.cell for finding in told}
    return tuple(finding for finding in findings if finding.cell not in cells)


def _status(alarms: Sequence[Finding], suspicions: Sequence[Finding]) -> str:
    if not alarms:
        return "suspicious" if suspicions else "ok"
    missing = ("failed", "missing", "unexpected")
    return "incomplete" if all(alarm.reason in missing for alarm in alarms) else "regression"


def changes(records: Sequence[NightRecord]) -> tuple[str, ...]:
    """Return what changed in the environment from each night to the next, with the night.

    Args:
        records: Consecutive nights, oldest first.
    """
    found = []
    for before, after in pairwise(records):
        for name in sorted({*before.environment, *after.environment}):
            old, new = before.environment.get(name), after.environment.get(name)
            if old != new:
                found.append(f"{name}: {old or 'none'} -> {new or 'none'} ({after.night})")
    return tuple(found)


class _Usual(NamedTuple):
    """What a cell is held against, on the scale of ``Scales.worse``, and since when it differs."""

    column: int
    level: float
    nights: int
    since: int


class _Comparison:
    """All series up to tonight, judged night by night."""

    def __init__(
        self,
        records: Sequence[NightRecord],
        cells: tuple[CellKey, ...],
        limits: Limits,
        accepted: Mapping[CellKey, str],
    ) -> None:
        self._records, self._cells = records, cells
        self._chart = Chart([cell.metric for cell in cells], limits)
        self._worse = self._chart.scales.worse(night_series(records, cells, accepted))
        judged = [self._chart.advance(night) for night in self._worse]
        self._judged: Judged = judged[-1]
        self._since = self._chart.since

    def alarms(self) -> tuple[Finding, ...]:
        """Return what was worse on two nights in a row, or has a step or a drift."""
        twice = [self._alarm(column) for column in _columns(self._chart.alarmed)]
        rest = _columns(~self._chart.alarmed & np.isfinite(self._worse[-1]))
        steps = [self._step(column) for column in rest]
        return (*twice, *(step for step in steps if step))

    def suspicions(self) -> tuple[Finding, ...]:
        """Return what is worse tonight for the first time."""
        columns = _columns(self._judged.worse & ~self._chart.alarmed)
        return tuple(self._finding(column, "is worse, for one night so far") for column in columns)

    def improvements(self) -> tuple[Finding, ...]:
        """Return what has become better, on two nights in a row."""
        columns = _columns(self._chart.improved)
        return tuple(self._finding(column, "is better") for column in columns)

    def notes(self) -> tuple[str, ...]:
        """Return how little is known of young series."""
        nights = self._judged.nights
        new, young = int((nights == 0).sum()), int(((nights > 0) & (nights < FEW_NIGHTS)).sum())
        notes = []
        if new:
            notes.append(
                f"{new} of {len(self._cells)} cells have no night to compare with: they were held "
                f"to hard limits alone"
            )
        if young:
            notes.append(
                f"{young} of {len(self._cells)} cells have fewer than {FEW_NIGHTS} nights to "
                f"compare with: how much they vary is assumed from their thresholds"
            )
        return tuple(notes)

    def _alarm(self, column: int) -> Finding:
        since = int(self._since[column])
        step = self._step(column, STEP_NIGHTS + 1)
        if step and step.since < self._records[since].night:
            return step
        nights = int(np.isfinite(self._worse[since:, column]).sum())
        return self._finding(column, f"is worse, {nights} nights in a row")

    def _finding(self, column: int, text: str) -> Finding:
        since = int(self._since[column])
        earlier = np.flatnonzero(np.isfinite(self._worse[:since, column]))
        expected, nights = self._judged.expected[column], self._judged.nights[column]
        usual = _Usual(column, float(expected), int(nights), since)
        causes = changes(self._records[int(earlier[-1]) : since + 1])
        return self._described(usual, "nights", text, causes)

    def _step(self, column: int, least: int = STEP_NIGHTS) -> Finding | None:
        """Return the finding of a step or a drift that makes tonight worse.

        Args:
            column: Which cell.
            least: Nights that there must be since; a step on so few as ``STEP_NIGHTS`` may be later
                than it seems.
        """
        nights = np.flatnonzero(np.isfinite(self._worse[:, column]))[-STEP_WINDOW:]
        series, threshold = self._worse[nights, column], self._judged.threshold[column]
        found = worse_step(series, float(self._judged.noise[column]), float(threshold))
        if found is None or found[0].nights < least:
            return None
        step, expected = found
        usual = _Usual(column, expected, step.index, int(nights[step.index]))
        near = nights[max(0, step.index - STEP_PLAY - 1) : step.index + STEP_PLAY + 1]
        causes = changes([self._records[night] for night in near])
        return self._described(usual, "step", "has become worse in its series", causes)

    def _described(self, usual: _Usual, reason: str, text: str, causes: tuple[str, ...]) -> Finding:
        column, level = usual.column, usual.level
        value = self._figure(column, float(self._worse[-1, column]))
        expected = self._figure(column, level)
        width = float(self._judged.half_width()[column])
        lower, upper = sorted(self._figure(column, level + side * width) for side in (-1, 1))
        beyond = self._figure(column, level + float(self._judged.threshold[column]))
        cell, since = self._cells[column], self._records[usual.since].night
        return Finding(
            cell,
            "soft",
            reason,
            f"{cell} {text}: {value:.6g} instead of {expected:.6g}, since {since}",
            value=value,
            expected=expected,
            lower=lower,
            upper=upper,
            threshold=abs(beyond - expected),
            nights=usual.nights,
            since=since,
            causes=causes,
        )

    def _figure(self, column: int, worse: float) -> float:
        row = np.full(len(self._cells), np.nan)
        row[column] = worse
        return float(self._chart.scales.figures(row)[column])


def _columns(flags: NDArray[np.bool_]) -> list[int]:
    return [int(column) for column in np.flatnonzero(flags)]
