"""Control charts of many series at once, updated night by night."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from orchestrator.nightly.verdict.limits import FAMILIES, Limits, measure_of
from orchestrator.statistics import holm

PRIOR_NIGHTS = 3  # Weight of the assumed noise, in nights of measured noise.
PRIOR_NOISE = 0.5  # Assumed standard deviation of a night, as a fraction of the threshold.
RESTART_NIGHTS = 5  # After this many better nights in a row the series restarts.
CUT_ERRORS = 4.0  # A single night that was out is clipped at this many standard errors.
POWER_ERRORS = 1.8  # A change this many deviations above the limit usually exceeds it twice.
MOST_CHANCE = 0.05  # Highest error level of one cell on one night, before Holm's procedure.
NIGHTS_A_MONTH = 30
_TINY = 1e-9  # Smallest threshold: a relative one is 0 for figures that are usually 0.

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


class Scales:
    """Turns figures into numbers where larger is worse, one column per metric.

    Times, speeds and sizes become logarithms, so that a ratio is a difference.
    """

    def __init__(self, metrics: Sequence[str], limits: Limits) -> None:
        measures = [measure_of(metric) for metric in metrics]
        thresholds = [limits.threshold(metric) for metric in metrics]
        self.sign = np.array([-1.0 if m.higher else 1.0 for m in measures])
        self.ratio = np.array([m.ratio for m in measures], dtype=bool)
        self._relative = np.array([t.relative for t in thresholds])
        self._absolute = np.array([t.absolute for t in thresholds])

    def worse(self, figures: Floats) -> Floats:
        """Return figures (..., C) of C columns on the scale on which larger is worse."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.sign * np.where(self.ratio, np.log(figures), figures)

    def figures(self, worse: Floats) -> Floats:
        """Return the figures that ``worse`` came from."""
        plain = self.sign * worse
        return np.where(self.ratio, np.exp(np.where(self.ratio, plain, 0.0)), plain)

    def thresholds(self, expected: Floats) -> Floats:
        """Return the smallest difference from each expected figure that matters.

        Differences are on the scale of ``worse``.
        """
        share = np.maximum(self._relative * np.abs(expected), np.maximum(self._absolute, _TINY))
        return np.where(self.ratio, np.abs(np.log1p(self.sign * self._relative)), share)


@dataclass(frozen=True)
class Judged:
    """The chart's judgement of one night: arrays (..., C) for C cells, as in ``Scales.worse``.

    Attributes:
        expected: Mean of the earlier good nights.
        spread, freedom: Standard error of the difference between tonight and ``expected``, and its
            degrees of freedom.
        level: One-sided error level of each cell after Holm's correction.
        threshold: Smallest difference that matters.
        nights: Number of earlier good nights.
        worse, better: Whether the night is beyond both control limit and threshold.
    """

    expected: Floats
    spread: Floats
    freedom: Counts
    level: Floats
    threshold: Floats
    nights: Counts
    worse: Flags
    better: Flags

    @property
    def noise(self) -> Floats:
        """Standard deviation of one night."""
        return self.spread / np.sqrt(1 + 1 / np.maximum(self.nights, 1))

    def half_width(self) -> Floats:
        """Return the distance of the control limits from ``expected``."""
        return stdtrit(self.freedom, 1 - self.level) * self.spread


class Chart:
    """One control chart per cell, all updated by one night at a time.

    A night is *out* if its difference from the mean of the last ``window`` good nights is above the
    practical threshold and outside the control limit of Student's t for one more night. The noise
    is measured between each good night and the mean of the good nights before it, so steps and
    drifts do not increase it. ``PRIOR_NIGHTS`` nights of assumed noise are added, so constant and
    very short series need no special rule.

    - Out once: the next night is judged without it. If the next night is not out in the same
      direction, this one becomes a good night, clipped at ``CUT_ERRORS`` standard errors.
    - Out twice and worse: an alarm until a night is no longer out and worse. Bad nights never
      become good ones, but their noise counts, so alarms end if a series varies more than was
      assumed.
    - Out twice and better: an improvement. After ``RESTART_NIGHTS`` better nights in a row the
      series restarts; fewer might be luck, and after a restart a return to the usual figures raises
      an alarm.

    Args:
        batch: Sizes of leading dimensions, for independent histories.
    """

    def __init__(self, metrics: Sequence[str], limits: Limits, batch: tuple[int, ...] = ()) -> None:
        shape = (*batch, len(metrics))
        self.scales = Scales(metrics, limits)
        names = np.array([measure_of(metric).family for metric in metrics])
        self._families = {f: np.flatnonzero(names == f) for f in FAMILIES if f in names}
        self._levels = family_levels({f: len(c) for f, c in self._families.items()}, limits)
        self._good = np.full((limits.window, *shape), np.nan)
        self._noise = np.full((limits.window, *shape), np.nan)
        self._out = np.full((RESTART_NIGHTS, *shape), np.nan)
        self._length = np.zeros(shape, dtype=np.int64)
        self._side = np.zeros(shape, dtype=np.int64)
        self._night = 0
        # Cells that were worse, or better, on two nights in a row; first night that was out.
        self.alarmed: Flags = np.zeros(shape, dtype=bool)
        self.improved: Flags = np.zeros(shape, dtype=bool)
        self.since: Counts = np.full(shape, -1)

    def advance(self, worse: Floats) -> Judged:
        """Judge a night, figures (..., C) of ``Scales.worse`` or NaN, and update the chart."""
        judged = self.judge(worse)
        self._update(worse, judged)
        self._night += 1
        return judged

    def judge(self, worse: Floats) -> Judged:
        """Judge a night without updating the chart."""
        nights = np.isfinite(self._good).sum(0)
        expected = np.nansum(self._good, 0) / np.where(nights, nights, np.nan)
        threshold = self.scales.thresholds(self.scales.figures(expected))
        measured = np.isfinite(self._noise).sum(0)
        squares = PRIOR_NIGHTS * (PRIOR_NOISE * threshold) ** 2 + np.nansum(self._noise**2, 0)
        noise = np.sqrt(squares / (PRIOR_NIGHTS + measured))
        spread = noise * np.sqrt(1 + 1 / np.maximum(nights, 1))
        freedom = PRIOR_NIGHTS + measured
        difference = worse - expected
        above = stdtr(freedom, -difference / spread)
        level, high = self._corrected(above)
        _, low = self._corrected(1 - above)
        return Judged(
            expected=expected,
            spread=spread,
            freedom=freedom,
            level=level,
            threshold=threshold,
            nights=nights,
            worse=high & (difference > threshold),
            better=low & (-difference > threshold),
        )

    def detectable(self, judged: Judged) -> Floats:
        """Return the change, on the scale of ``worse``, that is detected nine times in ten.

        It is the larger of control limit and threshold, which two nights in a row must exceed,
        plus ``POWER_ERRORS`` times the measured (not the assumed) noise.
        """
        level = np.full(judged.expected.shape, np.nan)
        for family, at in self._families.items():
            tests = np.isfinite(judged.expected[..., at]).sum(-1, keepdims=True)
            level[..., at] = self._levels[family] / np.maximum(tests, 1)
        limit = stdtrit(judged.freedom, 1 - level) * judged.spread
        measured = np.maximum(np.isfinite(self._noise).sum(0), 1)
        noise = np.sqrt(np.nansum(self._noise**2, 0) / measured)
        return np.maximum(limit, judged.threshold) + POWER_ERRORS * noise

    def _corrected(self, chances: Floats) -> tuple[Floats, Flags]:
        level, out = np.full(chances.shape, np.nan), np.zeros(chances.shape, dtype=bool)
        for family, at in self._families.items():
            divisors, corrected = holm(chances[..., at])
            level[..., at] = self._levels[family] / divisors
            out[..., at] = corrected <= self._levels[family]
        return level, out

    def _update(self, worse: Floats, judged: Judged) -> None:
        present = np.isfinite(worse)
        side = judged.worse.astype(int) - judged.better.astype(int)
        again = present & (side != 0) & (side == self._side)
        self._release(present & (self._length == 1) & ~again, judged)
        self._accept(present & (side == 0), worse, judged)
        self._noise = _pushed(self._noise, again, (worse - self._out[-1]) / np.sqrt(2))
        self._out = _pushed(self._out, present & (side != 0), worse)
        self.since = np.where(present & (side != 0) & ~again, self._night, self.since)
        self.alarmed = np.where(present, again & (side > 0), self.alarmed)
        self.improved = again & (side < 0)
        length = np.where(again, self._length + 1, np.abs(side))
        self._length = np.where(present, length, self._length)
        self._side = np.where(present, side, self._side)
        self._restart(self.improved & (self._length >= RESTART_NIGHTS))

    def _release(self, where: Flags, judged: Judged) -> None:
        """Add a single night that was out to the good ones, clipped at ``CUT_ERRORS``."""
        width = CUT_ERRORS * judged.spread
        low, high = judged.expected - width, judged.expected + width
        self._accept(where, np.clip(self._out[-1], low, high), judged)

    def _accept(self, where: Flags, worse: Floats, judged: Judged) -> None:
        apart = (worse - judged.expected) / np.sqrt(1 + 1 / np.maximum(judged.nights, 1))
        self._good = _pushed(self._good, where, worse)
        self._noise = _pushed(self._noise, where & (judged.nights > 0), apart)

    def _restart(self, where: Flags) -> None:
        """Replace the good nights with the last ``RESTART_NIGHTS``, which were better."""
        if where.any():
            self._good = np.where(where, np.nan, self._good)
            for night in self._out:
                self._good = _pushed(self._good, where, night)
            self._side = np.where(where, 0, self._side)
            self._length = np.where(where, 0, self._length)


def _pushed(ring: Floats, where: Flags, values: Floats) -> Floats:
    return np.where(where, np.concatenate([ring[1:], values[None]]), ring)


def family_levels(cells: Mapping[str, int], limits: Limits) -> dict[str, float]:
    """Return the error level of one night's tests by family; ``cells`` has each family's size.

    Suppose that each of m cells exceeds its limit on one night with probability p. Any of them does
    so on two nights in a row with probability of about m p^2. This is set to the family's share of
    the accepted false alarms per night, which gives p; p is at most ``MOST_CHANCE``. Holm's
    procedure at level m p gives each cell at least p.
    """
    share = limits.false_alarms / NIGHTS_A_MONTH / max(len(cells), 1)
    return {name: n * min(MOST_CHANCE, math.sqrt(share / n)) for name, n in cells.items()}
