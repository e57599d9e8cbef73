"""Control charts of many series at once, which advance night by night."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from orchestrator.nightly.verdict.limits import FAMILIES, Limits, measure_of
from orchestrator.statistics import holm

PRIOR_NIGHTS = 3  # How many nights of measured noise the assumed noise is worth.
PRIOR_NOISE = 0.5  # Assumed standard deviation of a night, as a part of the practical threshold.
RESTART_NIGHTS = 5  # How many better nights in a row become the usual ones.
CUT_ERRORS = 4.0  # Standard errors beyond which a night that was out alone counts no further.
POWER_ERRORS = 1.8  # Deviations above the limit at which two nights in a row mostly are.
MOST_CHANCE = 0.05  # Highest error level of one cell on one night, however few cells there are.
NIGHTS_A_MONTH = 30
_TINY = 1e-9  # So that a figure that is usually 0 has a threshold too.

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
        """Return figures (..., C) on the scale on which larger is worse."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.sign * np.where(self.ratio, np.log(figures), figures)

    def figures(self, worse: Floats) -> Floats:
        """Return the figures that ``worse`` came from."""
        plain = self.sign * worse
        return np.where(self.ratio, np.exp(np.where(self.ratio, plain, 0.0)), plain)

    def thresholds(self, expected: Floats) -> Floats:
        """Return the smallest difference that matters, on the scale of ``worse``."""
        share = np.maximum(self._relative * np.abs(expected), np.maximum(self._absolute, _TINY))
        return np.where(self.ratio, np.abs(np.log1p(self.sign * self._relative)), share)


@dataclass(frozen=True)
class Judged:
    """What the chart says of one night; arrays (..., C) on the scale of ``Scales.worse``.

    Attributes:
        expected: Mean of the nights before.
        spread, freedom: Standard error of the difference between tonight and ``expected``, and its
            degrees of freedom.
        level: One-sided error level of each cell after Holm's correction.
        threshold: Smallest difference that matters.
        worse, better: Beyond the control limit and the threshold, upwards and downwards.
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
    """One control chart for every cell, all advanced by one night at a time.

    A night is *out* if its difference from the mean of the last ``window`` good nights is above the
    practical threshold and outside the control limit of Student's t for one more night. The noise
    is that of the good nights against the mean before each (so steps and drifts do not widen it),
    with ``PRIOR_NIGHTS`` nights of assumed noise: a series that never varies, or has hardly begun,
    then needs no rule of its own.

    - Out once: the night is set aside; the next one is judged without it. If that is in again, the
      night set aside joins the good nights, cut off at ``CUT_ERRORS`` standard errors.
    - Out twice, worse: an alarm, until a night is in again. Bad nights never become usual, but the
      noise among them counts, so that a series that varies more than was assumed calms down.
    - Out twice, better: told. After ``RESTART_NIGHTS`` of them the series restarts there; fewer
      might be luck, and the usual figures would then look like an alarm.

    Args:
        batch: Sizes of leading dimensions: histories that have nothing to do with each other.
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
        # Cells that were worse, or better, on two nights in a row; the night that each went out.
        self.alarmed: Flags = np.zeros(shape, dtype=bool)
        self.improved: Flags = np.zeros(shape, dtype=bool)
        self.since: Counts = np.full(shape, -1)

    def advance(self, worse: Floats) -> Judged:
        """Judge a night, figures (..., C) of ``Scales.worse`` or NaN, and take it into account."""
        judged = self.judge(worse)
        self._take(worse, judged)
        self._night += 1
        return judged

    def judge(self, worse: Floats) -> Judged:
        """Judge a night without taking it into account."""
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
        """Return the change, on the scale of ``worse``, that mostly is in alarm when seen twice.

        Nine in ten are: what both nights must exceed, and ``POWER_ERRORS`` deviations of the nights
        so far, without the assumed ones. A cell that never varied is caught for sure.
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

    def _take(self, worse: Floats, judged: Judged) -> None:
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
        """Add a night that was out alone to the good ones, with no more weight than it earns."""
        width = CUT_ERRORS * judged.spread
        low, high = judged.expected - width, judged.expected + width
        self._accept(where, np.clip(self._out[-1], low, high), judged)

    def _accept(self, where: Flags, worse: Floats, judged: Judged) -> None:
        apart = (worse - judged.expected) / np.sqrt(1 + 1 / np.maximum(judged.nights, 1))
        self._good = _pushed(self._good, where, worse)
        self._noise = _pushed(self._noise, where & (judged.nights > 0), apart)

    def _restart(self, where: Flags) -> None:
        """Start the series at the nights that were better."""
        if where.any():
            self._good = np.where(where, np.nan, self._good)
            for night in self._out:
                self._good = _pushed(self._good, where, night)
            self._side = np.where(where, 0, self._side)
            self._length = np.where(where, 0, self._length)


def _pushed(ring: Floats, where: Flags, values: Floats) -> Floats:
    return np.where(where, np.concatenate([ring[1:], values[None]]), ring)


def family_levels(cells: Mapping[str, int], limits: Limits) -> dict[str, float]:
    """Return the error level of one night's tests of each family, given its number of cells.

    Of m cells, each out on one night with chance p, the chance that any is out twice in a row is
    about m p^2. Setting it to the family's share of the bearable false alarms a night gives p, and
    Holm's procedure at level m p gives each cell at least p, up to ``MOST_CHANCE``.
    """
    share = limits.false_alarms / NIGHTS_A_MONTH / max(len(cells), 1)
    return {name: n * min(MOST_CHANCE, math.sqrt(share / n)) for name, n in cells.items()}
