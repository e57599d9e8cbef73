"""Random nights: the verdict is that of a model that goes through each series, number by number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from nights import TASK, name
from scipy.stats import t as student

from orchestrator.nightly import Bounds, CellKey, Limits, NightRecord, Shape, judge
from orchestrator.nightly.verdict.limits import measure_of

LEVELS = {
    "acc": 0.95,
    "ece": 0.02,
    "images_per_second": 5000.0,
    "wall_seconds": 0.5,
    "peak_memory": 1e9,
}
RECIPES, SEEDS = ("ce", "ls"), (0, 1)
CELLS = [CellKey(recipe, TASK, metric) for recipe in RECIPES for metric in LEVELS]
SHAPE = Shape(RECIPES, (TASK,), tuple(LEVELS), SEEDS)
LENGTH = 50


def is_worse(cell: CellKey, figure: float) -> float:
    """Return a number that is larger for a worse figure; a logarithm for times and sizes."""
    value = math.log(figure) if measure_of(cell.metric).ratio else figure
    return -value if measure_of(cell.metric).higher else value


def figure_of(cell: CellKey, worse: float) -> float:
    value = -worse if measure_of(cell.metric).higher else worse
    return math.exp(value) if measure_of(cell.metric).ratio else value


def least_change(cell: CellKey, usual: float, limits: Limits) -> float:
    threshold, figure = limits.threshold(cell.metric), figure_of(cell, usual)
    if measure_of(cell.metric).ratio:
        share = 1 - threshold.relative if measure_of(cell.metric).higher else 1 + threshold.relative
        return abs(math.log(share))
    return max(threshold.relative * abs(figure), threshold.absolute)


def figures(
    records: Sequence[NightRecord], cell: CellKey, accepted: Mapping[CellKey, str]
) -> list[float | None]:
    """Return a figure a night over the same seeds, None where there is none."""
    start = max(accepted.get(cell, ""), accepted.get(CellKey(*cell.pair), ""))
    start = "" if start > records[-1].night else start  # None of these nights, but an older one.
    rows: list[dict[int, float]] = []
    for record in records:
        values = record.cells.get(cell, {}) if record.night >= start else {}
        rows.append({seed: value for seed, value in values.items() if possible(cell, value)})
    seeds = set(rows[-1])
    for row in rows[-2::-1]:
        if seeds & set(row):
            seeds &= set(row)
            break
    found: list[float | None] = []
    for row in rows:
        own = [row[seed] for seed in seeds if seed in row]
        whole = bool(seeds) and len(own) == len(seeds)
        found.append(one_figure(cell, own) if whole else None)
    return found


def possible(cell: CellKey, value: float) -> bool:
    return math.isfinite(value) and (value > 0 or not measure_of(cell.metric).ratio)


def one_figure(cell: CellKey, values: Sequence[float]) -> float:
    if not measure_of(cell.metric).best:
        return is_worse(cell, sum(values) / len(values))
    return min(is_worse(cell, value) for value in values)


@dataclass
class Line:
    """One series: the nights that count as usual, how far each was off, and those that were out."""

    good: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    out: list[float] = field(default_factory=list)
    side: int = 0
    times: int = 0
    since: int = -1
    alarmed: bool = False
    improved: bool = False
    told: dict[str, Any] = field(default_factory=dict)

    def measure(self, cell: CellKey, value: float | None, limits: Limits) -> None:
        """Compare a night with the last usual ones."""
        usual, apart = self.good[-limits.window :], self.apart[-limits.window :]
        self.told = {"nights": len(usual), "value": value}
        if not usual:
            return
        mean = sum(usual) / len(usual)
        least = least_change(cell, mean, limits)
        squares = 3 * (least / 2) ** 2 + sum(each**2 for each in apart)
        noise = math.sqrt(squares / (3 + len(apart)))
        spread = noise * math.sqrt(1 + 1 / len(usual))
        freedom = 3 + len(apart)
        self.told |= {"mean": mean, "least": least, "noise": noise, "spread": spread}
        self.told["freedom"] = freedom
        if value is not None:
            self.told["above"] = student.sf((value - mean) / spread, freedom)

    def advance(self, night: int, worse: bool, better: bool) -> None:
        value, again = self.told["value"], False
        self.improved = False
        if value is None:
            return
        side = 1 if worse else -1 if better else 0
        again = side != 0 and side == self.side
        if self.times == 1 and not again:
            far = 4 * self.told["spread"]
            alone = min(max(self.out[-1], self.told["mean"] - far), self.told["mean"] + far)
            self.take(alone)
        if side == 0:
            self.take(value)
        elif again:
            self.apart.append((value - self.out[-1]) / math.sqrt(2))
        else:
            self.since = night
        self.times = self.times + 1 if again else abs(side)
        self.out += [value] if side else []
        self.alarmed, self.improved = again and worse, again and better
        self.side = side
        if self.improved and self.times >= 5:
            self.good, self.side, self.times = self.out[-5:], 0, 0

    def take(self, value: float) -> None:
        if self.told["nights"]:
            shrunk = math.sqrt(1 + 1 / self.told["nights"])
            self.apart.append((value - self.told["mean"]) / shrunk)
        self.good.append(value)


def holm(chances: dict[CellKey, float], level: float) -> tuple[dict[CellKey, float], set[CellKey]]:
    """Return the level of each test, and those that are rejected: from the least chance on."""
    levels, rejected, on = {}, set(), True
    for rank, cell in enumerate(sorted(chances, key=lambda cell: chances[cell])):
        levels[cell] = level / (len(chances) - rank)
        on = on and chances[cell] <= levels[cell]
        rejected |= {cell} if on else set()
    return levels, rejected


def advance_all(lines: dict[CellKey, Line], night: int, limits: Limits) -> None:
    families = {measure_of(cell.metric).family for cell in lines}
    for family in families:
        own = {c: line for c, line in lines.items() if measure_of(c.metric).family == family}
        # As many false alarms as are bearable in 30 nights, each of two nights in a row.
        chance = min(0.05, math.sqrt(limits.false_alarms / 30 / len(families) / len(own)))
        tests = {cell: line.told["above"] for cell, line in own.items() if "above" in line.told}
        levels, high = holm(tests, chance * len(own))
        low = holm({cell: 1 - p for cell, p in tests.items()}, chance * len(own))[1]
        for cell, line in own.items():
            line.told["level"] = levels.get(cell)
            off = line.told["value"] - line.told["mean"] if cell in tests else 0.0
            line.told["worse"] = cell in high and off > line.told["least"]
            better = cell in low and -off > line.told["least"]
            line.advance(night, line.told["worse"], better)


def best_split(series: Sequence[float], noise: float) -> list[int]:
    """Return where levels of five nights and more begin, at the least sum of squared errors."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for end in range(5, len(series) + 1):
        found = []
        for start in best:
            if end - start >= 5:
                part = np.array(series[start:end]) / noise
                cost = best[start][0] + float(((part - part.mean()) ** 2).sum()) + 36.0
                found.append((cost, [*best[start][1], start]))
        best[end] = min(found)
    return best[len(series)][1]


def step(
    line: Line, series: Sequence[float | None], window: int
) -> tuple[int, int, int, float] | None:
    """Return the first night of the last step to the worse, what lies before and after it, and
    the level it is held against."""
    nights = [night for night, value in enumerate(series) if value is not None][-window:]
    own = [value for value in series if value is not None][-window:]
    if len(own) < 10 or "noise" not in line.told:
        return None
    starts = best_split(own, line.told["noise"])
    if len(starts) == 1:
        return None
    parts = [own[start:end] for start, end in pairwise([*starts, len(own)])]
    means = [sum(part) / len(part) for part in parts]
    level = min(means[:-1])
    rests_on = len(parts[means.index(level)])
    error = line.told["noise"] * math.sqrt(1 / len(parts[-1]) + 1 / rests_on)
    if means[-1] - level <= max(line.told["least"], 6 * error):
        return None
    if own[-1] - level <= line.told["least"]:
        return None
    return nights[starts[-1]], starts[-1], len(parts[-1]), level


def changed(records: Sequence[NightRecord]) -> tuple[str, ...]:
    return tuple(
        f"torch: {before.environment['torch']} -> {after.environment['torch']} ({after.night})"
        for before, after in pairwise(records)
        if before.environment != after.environment
    )


def naive(
    records: Sequence[NightRecord], limits: Limits, accepted: Mapping[CellKey, str], window: int
) -> dict[str, Any]:
    """Return what the verdict of the last night must hold."""
    tonight = records[-1]
    series = {cell: figures(records, cell, accepted) for cell in tonight.cells}
    lines = {cell: Line() for cell in series}
    for night in range(len(records)):
        for cell, line in lines.items():
            line.measure(cell, series[cell][night], limits)
        advance_all(lines, night, limits)
    alarms = hard(records)
    suspicions, improvements = [], []
    for cell, line in lines.items():
        if cell in {alarm[0] for alarm in alarms} or series[cell][-1] is None:
            continue
        found = step(line, series[cell], window)
        stepped = found and found[2] >= (6 if line.alarmed else 5)
        if found and stepped and (not line.alarmed or found[0] < line.since):
            at, before, _, level = found
            own = [night for night, value in enumerate(series[cell]) if value is not None]
            near = own[max(0, own.index(at) - 3) : own.index(at) + 3]
            causes = changed([records[night] for night in near])
            alarms.append((cell, "step", described(cell, line, level, before, at, causes)))
            continue
        earlier = [n for n in range(line.since) if series[cell][n] is not None]
        causes = changed(records[earlier[-1] : line.since + 1]) if earlier else ()
        if line.alarmed:
            own = described(cell, line, line.told["mean"], line.told["nights"], line.since, causes)
            alarms.append((cell, "nights", own))
        elif line.told["worse"] or line.improved:
            own = described(cell, line, line.told["mean"], line.told["nights"], line.since, causes)
            (suspicions if line.told["worse"] else improvements).append((cell, "nights", own))
    new = sum(line.told["nights"] == 0 for line in lines.values())
    young = sum(0 < line.told["nights"] < 5 for line in lines.values())
    return {
        "alarms": alarms,
        "suspicions": suspicions,
        "improvements": improvements,
        "notes": [f"{n} of {len(lines)} cells" for n in (new, young) if n],
    }


def hard(records: Sequence[NightRecord]) -> list[Any]:
    """Return what one night alone is enough for."""
    tonight, found = records[-1], []
    at_once = {"since": tonight.night, "causes": changed(records[-2:])}
    for recipe in RECIPES:
        own = [tonight.cells.get(CellKey(recipe, TASK, metric), {}) for metric in LEVELS]
        if (recipe, TASK) in tonight.failed:
            found.append((CellKey(recipe, TASK), "failed", at_once))
        elif any(set(values) != set(SEEDS) for values in own):
            found.append((CellKey(recipe, TASK), "missing", at_once))
    for cell, values in tonight.cells.items():
        if not all(possible(cell, value) for value in values.values()):
            found.append((cell, "not finite", at_once))
            continue
        figure = figure_of(cell, one_figure(cell, list(values.values())))
        bounds = HARD.get(cell.metric, Bounds(min=-math.inf))
        low, high = bounds.min, bounds.max
        if (low is not None and figure < low) or (high is not None and figure > high):
            own = {"value": pytest.approx(figure), "lower": low, "upper": high}
            found.append((cell, "limit", {**at_once, **own}))
    return found


def described(
    cell: CellKey, line: Line, level: float, nights: int, since: int, causes: tuple[str, ...]
) -> dict[str, Any]:
    width = student.isf(line.told["level"], line.told["freedom"]) * line.told["spread"]
    limits = sorted(figure_of(cell, level + side * width) for side in (-1, 1))
    expected = figure_of(cell, level)
    return {
        "value": pytest.approx(figure_of(cell, line.told["value"]), rel=1e-9),
        "expected": pytest.approx(expected, rel=1e-9),
        "lower": pytest.approx(limits[0], rel=1e-7),
        "upper": pytest.approx(limits[1], rel=1e-7),
        "threshold": pytest.approx(
            abs(figure_of(cell, level + line.told["least"]) - expected), rel=1e-7
        ),
        "nights": nights,
        "since": name(since),
        "causes": causes,
    }


HARD = {"acc": Bounds(min=0.94), "ece": Bounds(min=0.0, max=0.03), "wall_seconds": Bounds(max=0.7)}
HOLES = ("gone", "seed 0", "seed 1", "nan", "zero")


def random_nights(rng: np.random.Generator) -> list[NightRecord]:
    """Return nights with steps, drifts, single bad nights, holes and new libraries."""
    noise = rng.choice([0.05, 0.2, 0.6])
    courses = {cell: noise * rng.normal(size=LENGTH) for cell in CELLS}
    for number in rng.integers(len(CELLS), size=10):
        first, length = rng.integers(LENGTH), int(rng.choice([1, 2, 4, 7, 20]))
        course = courses[CELLS[number]][first : first + length]
        size = rng.normal(scale=3.0)
        course += size if rng.random() < 0.7 else size * np.arange(len(course)) / length
    holes = {
        (CELLS[rng.integers(len(CELLS))], int(rng.integers(LENGTH))): str(rng.choice(HOLES))
        for _ in range(25)
    }
    updates, broken = rng.integers(LENGTH, size=8), rng.integers(LENGTH, size=3)
    records = []
    for night in range(LENGTH):
        cells = {
            cell: values
            for cell in CELLS
            if (values := _values(cell, courses[cell][night], holes.get((cell, night), ""), rng))
        }
        failed = {("ls", TASK): "out of memory"} if night in broken else {}
        cells = {cell: values for cell, values in cells.items() if cell.pair not in failed}
        environment = {"torch": str((updates <= night).sum())}
        records.append(NightRecord(name(night), 0.0, cells, failed, SHAPE, environment))
    return records


def _values(cell: CellKey, off: float, hole: str, rng: np.random.Generator) -> dict[int, float]:
    """Return a figure a seed, so many thresholds worse than usual."""
    usual = is_worse(cell, LEVELS[cell.metric] * (1.01 if cell.recipe == "ls" else 1.0))
    figure = figure_of(cell, usual + off * least_change(cell, usual, Limits()))
    values = {seed: float(figure * (1 + 1e-3 * rng.normal())) for seed in SEEDS}
    if hole == "nan" or (hole == "zero" and cell.metric != "acc"):
        values[0] = math.nan if hole == "nan" else 0.0
    kept = [seed for seed in SEEDS if hole != "gone" and hole != f"seed {seed}"]
    return {seed: values[seed] for seed in kept}


@pytest.mark.parametrize("salt", range(40))
def test_the_verdict_is_that_of_a_naive_model(salt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(salt)
    step_window = (90, 25)[salt % 2]
    monkeypatch.setattr("orchestrator.nightly.verdict.judge.STEP_WINDOW", step_window)
    nights = random_nights(rng)
    limits = Limits(
        window=int(rng.choice([5, 9, 21])), false_alarms=float(rng.uniform(0.1, 20)), hard=HARD
    )
    pairs = [*CELLS, CellKey("ls", TASK)]
    accepted = {pairs[rng.integers(len(pairs))]: name(int(rng.integers(1, LENGTH)))}
    for end in rng.integers(1, LENGTH + 1, size=6):
        records = nights[:end]
        verdict = judge(records[:-1], records[-1], limits, accepted)
        expected = naive(records, limits, accepted, step_window)
        for kind in ("alarms", "suspicions", "improvements"):
            told = {found.cell: found for found in getattr(verdict, kind)}
            assert {(found.cell, found.reason) for found in told.values()} == {
                (cell, reason) for cell, reason, _ in expected[kind]
            }
            for cell, _, values in expected[kind]:
                for entry, value in (values or {}).items():
                    assert getattr(told[cell], entry) == value, (kind, cell, entry)
        assert len(verdict.notes) == len(expected["notes"])
        for note, beginning in zip(verdict.notes, expected["notes"], strict=True):
            assert note.startswith(beginning)
