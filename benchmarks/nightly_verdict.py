"""Simulates nightly histories and counts false alarms and detected changes.

Run ``python benchmarks/nightly_verdict.py --out benchmarks/results/nightly-verdict.md``. The
variation of the figures was measured by ``nightly_noise.py`` and is read from
``benchmarks/results/nightly-noise.json``.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _page import options, publish, table
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import binomtest, chi2

from orchestrator.nightly import CellKey, Limits, NightRecord, Shape, judge
from orchestrator.nightly.verdict.chart import Chart, Judged
from orchestrator.nightly.verdict.judge import STEP_WINDOW
from orchestrator.nightly.verdict.series import STEP_NIGHTS, worse_step

RECIPES = ("ce", "ce+ts", "ls", "ls+ts", "mbls+ts")
QUALITY = ("acc", "ece", "aece", "cwece", "nll")
COSTS = ("images_per_second", "wall_seconds", "peak_memory")
METRICS = tuple(metric for _ in RECIPES for metric in (*QUALITY, *COSTS))
MONTH = 30
NIGHTS = 1000
WARM_UP = 30
REMEMBERED = 40
TOGETHER = 0.5
"""Share of the variance of a quality figure that all metrics of a recipe have in common."""
OWN = 0.02
"""Noise of one cell's time besides the machine's; repeats of one recipe do not show it."""
LIMITS = Limits()
RESULTS = Path(__file__).parent / "results"
COST_LEVELS = {"images_per_second": 10000.0, "wall_seconds": 2.0, "peak_memory": 6.4e8}

Floats = NDArray[np.float64]


class Setting(NamedTuple):
    """Settings of a simulation.

    Attributes:
        text: Name in tables.
        noise: Measured noise of quality that is drawn every night: ``arithmetic`` or ``seeds``.
        share: Factor of this noise.
        seeds: Number of seeds behind each figure of quality.
        clock: Name of the measured clock whose deviations are used for times and speeds.
    """

    text: str
    noise: str
    share: float
    seeds: int
    clock: str = "process_seconds"


SETTINGS = (
    Setting("A: one machine, 3 seeds", "arithmetic", 0.0, 3),
    Setting("B: other arithmetic every night, 20 seeds", "arithmetic", 1.0, 20),
    Setting("C: other arithmetic every night, 3 seeds", "arithmetic", 1.0, 3),
    Setting("D: seeds not fixed, 3 seeds, wall clock", "seeds", 1.0, 3, "wall_seconds"),
)

SAID = """\
- 5 recipes x 8 metrics = 40 cells on the digits; limits {limits}. A month has 30 nights. The 95 %
  intervals are exact Poisson and Wilson's.
- A: nights do not vary. B and C draw the rounding noise of other instruction sets every night, D
  the whole noise between seeds. Half of the variance is common to all metrics of a recipe. Times
  are measured nights in blocks of three, plus 2 % noise per cell (Student's t, 3 degrees).
- *Caught*: only the changed cell raises an alarm on the second changed night, after
  {warm_up} nights.
- `judge` itself raised an alarm on {raised} of {nights} nights of B."""
ALARMS = ["setting", "histories x nights", "two nights", "steps"]
ALARMS += ["false alarms per month", "suspicious nights per month"]
CAUGHT = ("change", "setting", "noise of a night", "caught", "share")


@dataclass(frozen=True)
class Noise:
    """How figures vary from night to night.

    Attributes:
        name: Name in tables.
        levels: Usual figure of each of 40 cells, (40,).
        sizes: Standard deviation of one night's figure of quality, over its seeds (40,).
        costs: Measured deviations (of logarithms) of the machine's nights by metric, in order.
        steady: Standard deviation of the logarithm of a time or a speed in one cell; it is drawn
            from Student's t with 3 degrees of freedom.
    """

    name: str
    levels: Floats
    sizes: Floats
    costs: dict[str, Floats]
    steady: float

    def draw(self, rng: np.random.Generator, nights: int, batch: int) -> Floats:
        """Return figures (nights, batch, 40)."""
        shape = (nights, batch, len(RECIPES))
        figures = np.empty((nights, batch, len(METRICS)))
        common = rng.normal(size=shape)
        for column, metric in enumerate(METRICS):
            recipe = column // (len(METRICS) // len(RECIPES))
            own = rng.normal(size=shape[:2])
            if metric in QUALITY:
                mixed = np.sqrt(TOGETHER) * common[..., recipe] + np.sqrt(1 - TOGETHER) * own
                figures[..., column] = self.levels[column] + self.sizes[column] * mixed
        for metric in COSTS:
            columns = [column for column, name in enumerate(METRICS) if name == metric]
            machine = blocks(rng, self.costs[metric], nights, batch)
            own = rng.standard_t(3, size=(nights, batch, len(columns))) * self.steady / np.sqrt(3)
            own = 0 * own if metric == "peak_memory" else own
            figures[..., columns] = self.levels[columns] * np.exp(machine[..., None] + own)
        return figures


def blocks(rng: np.random.Generator, measured: Floats, nights: int, batch: int) -> Floats:
    """Resample the measured nights (nights, batch) in blocks of three consecutive nights.

    Consecutive nights are not independent, because a busy machine stays busy for a while.
    """
    length = 3
    starts = rng.integers(len(measured), size=(-(-nights // length), batch))
    index = (starts[:, None, :] + np.arange(length)[None, :, None]) % len(measured)
    return measured[index.reshape(-1, batch)[:nights]]


@dataclass(frozen=True)
class FalseAlarms:
    """Alarms in histories in which nothing ever changed.

    Attributes:
        histories: Number of histories.
        nights: Number of nights in all histories together.
        twice: Number of cells with an alarm because of two nights in a row.
        steps: Number of cells with an alarm because of a step or a drift in the series.
        suspicious: Number of nights that were suspicious without an alarm.
    """

    histories: int
    nights: int
    twice: int
    steps: int
    suspicious: int


def false_alarms(noise: Noise, histories: int, seed: int) -> FalseAlarms:
    """Count the alarms of histories of ``NIGHTS`` nights in which nothing changes."""
    rng = np.random.default_rng(seed)
    chart = Chart(METRICS, LIMITS, (histories,))
    worse = chart.scales.worse(noise.draw(rng, NIGHTS, histories))
    before = np.zeros((2, histories, len(METRICS)), dtype=bool)
    twice = steps = suspicious = 0
    for night in range(NIGHTS):
        judged = chart.advance(worse[night])
        stepped = step_alarms(worse[: night + 1], judged)
        stepped &= ~chart.alarmed
        twice += int((chart.alarmed & ~before.any(0)).sum())
        steps += int((stepped & ~before.any(0)).sum())
        raised = (chart.alarmed | stepped).any(-1)
        suspicious += int((judged.worse.any(-1) & ~raised).sum())
        before = np.stack([chart.alarmed, stepped])
    return FalseAlarms(histories, histories * NIGHTS, twice, steps, suspicious)


def step_alarms(worse: Floats, judged: Judged) -> NDArray[np.bool_]:
    """Mark the cells (batch, 40) with a step or a drift that makes the last night worse."""
    window = worse[-STEP_WINDOW:]
    noise, threshold = judged.noise, judged.threshold
    found = np.zeros(noise.shape, dtype=bool)
    if len(window) < 2 * STEP_NIGHTS:
        return found
    sums = np.cumsum(np.concatenate([np.zeros((1, *noise.shape)), window]), axis=0)
    lowest = (sums[STEP_NIGHTS:] - sums[:-STEP_NIGHTS]).min(0) / STEP_NIGHTS
    for at in zip(*np.nonzero(window[-1] - lowest > threshold), strict=True):
        series = window[(slice(None), *at)]
        found[at] = worse_step(series, float(noise[at]), float(threshold[at])) is not None
    return found


@dataclass(frozen=True)
class Change:
    """Something that goes wrong in one cell.

    Attributes:
        text: Description in tables.
        metric: Metric of the cell.
        factor: Factor by which the figure is multiplied.
        shift: Number that is then added to the figure.
    """

    text: str
    metric: str
    factor: float = 1.0
    shift: float = 0.0


CHANGES = (
    Change("ECE 20% worse", "ece", factor=1.2),
    Change("accuracy 1 point lower", "acc", shift=-0.01),
    Change("30% slower (images a second)", "images_per_second", factor=0.7),
    Change("30% longer (wall time)", "wall_seconds", factor=1.3),
    Change("peak memory 40% higher", "peak_memory", factor=1.4),
)


def caught(noise: Noise, change: Change, trials: int, seed: int) -> tuple[int, int]:
    """Return the numbers of trials with an alarm by the second night, and of all trials.

    The cell of each recipe is changed in the same number of trials.
    """
    rng = np.random.default_rng(seed)
    columns = [column for column, metric in enumerate(METRICS) if metric == change.metric]
    column = np.resize(columns, trials)
    figures = noise.draw(rng, WARM_UP + 2, trials)
    changed = (np.arange(trials), column)
    for night in (-2, -1):
        figures[night][changed] = figures[night][changed] * change.factor + change.shift
    chart = Chart(METRICS, LIMITS, (trials,))
    for night in chart.scales.worse(figures):
        chart.advance(night)
    return int(chart.alarmed[changed].sum()), trials


def records(noise: Noise, seed: int) -> Iterator[NightRecord]:
    """Yield a history as records for ``judge``, with one seed per figure."""
    figures = noise.draw(np.random.default_rng(seed), NIGHTS, 1)[:, 0]
    per = len(METRICS) // len(RECIPES)
    cells = [CellKey(RECIPES[c // per], "digits", metric) for c, metric in enumerate(METRICS)]
    shape = Shape(RECIPES, ("digits",), METRICS[:per], (0,))
    for night, row in enumerate(figures):
        values = {cell: {0: float(value)} for cell, value in zip(cells, row, strict=True)}
        yield NightRecord(f"{night:04d}", float(night), values, shape=shape)


def through_judge(noise: Noise, seed: int) -> int:
    """Return the number of ``NIGHTS`` nights for which ``judge`` raises an alarm."""
    history: list[NightRecord] = []
    raised = 0
    for record in records(noise, seed):
        raised += judge(history[-REMEMBERED:], record, LIMITS).raised
        history.append(record)
    return raised


def noise_of(setting: Setting, measured: dict[str, Any]) -> Noise:
    """Return the variation of figures in a setting."""
    quality = measured["quality"]
    per = len(METRICS) // len(RECIPES)
    levels, sizes = np.empty(len(METRICS)), np.zeros(len(METRICS))
    for column, metric in enumerate(METRICS):
        place = measured["recipes"].index(RECIPES[column // per])
        if metric in QUALITY:
            levels[column] = quality[metric]["level"][place]
            size = quality[metric][setting.noise][place]
            sizes[column] = setting.share * size / np.sqrt(setting.seeds)
        else:
            levels[column] = COST_LEVELS[metric]
    seconds = np.array(measured["cost"][setting.clock][0])
    memory = np.array(measured["cost"]["peak_memory"][0])
    costs = {"images_per_second": -seconds, "wall_seconds": seconds, "peak_memory": memory}
    return Noise(setting.text, levels, sizes, costs, OWN)


def false_alarm_row(noise: Noise, found: FalseAlarms) -> list[str]:
    """Return a row of the first table."""
    count, months = found.twice + found.steps, found.nights / MONTH
    low, high = chi2.ppf(0.025, 2 * count) / 2 if count else 0.0, chi2.ppf(0.975, 2 * count + 2) / 2
    return [
        noise.name,
        f"{found.histories} x {NIGHTS}",
        str(found.twice),
        str(found.steps),
        f"{count / months:.3f} ({low / months:.3f} to {high / months:.3f})",
        f"{found.suspicious / months:.2f}",
    ]


def caught_row(noise: Noise, change: Change, trials: int, seed: int) -> list[str]:
    """Return a row of the second table."""
    hits, of = caught(noise, change, trials, seed)
    low, high = binomtest(hits, of).proportion_ci(method="wilson")
    columns = [column for column, metric in enumerate(METRICS) if metric == change.metric]
    if change.metric in QUALITY:
        sizes, levels = noise.sizes[columns], noise.levels[columns]
        size = sizes * 100 if change.metric == "acc" else 100 * sizes / levels
        unit = "points" if change.metric == "acc" else "%"
    else:
        own = 0.0 if change.metric == "peak_memory" else noise.steady
        size = 100 * np.array([np.hypot(noise.costs[change.metric].std(), own)])
        unit = "%"
    spread = (
        f"{size.min():.2f} to {size.max():.2f} {unit}" if np.ptp(size) else f"{size[0]:.2f} {unit}"
    )
    share = f"{100 * hits / of:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    return [change.text, noise.name, spread, f"{hits} of {of}", share]


def main() -> None:
    """Simulate, and print or write the tables."""
    parser = options(__doc__)
    parser.add_argument("--noise", type=Path, default=RESULTS / "nightly-noise.json")
    parser.add_argument("--histories", type=int, default=10)
    parser.add_argument("--trials", type=int, default=2000)
    wanted = parser.parse_args()
    measured = json.loads(wanted.noise.read_text(encoding="utf-8"))
    settings = [noise_of(setting, measured) for setting in SETTINGS]
    started = time.monotonic()
    with Console(stderr=True).status("simulating") as status:
        alarms, hits = [], []
        for seed, noise in enumerate(settings):
            status.update(f"simulating: {noise.name}")
            alarms.append(false_alarm_row(noise, false_alarms(noise, wanted.histories, seed)))
            hits += [caught_row(noise, change, wanted.trials, seed) for change in CHANGES]
        status.update("judging a history night by night")
        raised = through_judge(settings[1], len(settings))
    said = SAID.format(limits=LIMITS, warm_up=WARM_UP, nights=NIGHTS, raised=raised)
    short = [[row[0], *row[4:]] for row in alarms]
    lines = [*table([ALARMS[0], *ALARMS[4:]], short), "", said]
    place = f"{measured['setting']}; simulated in {time.monotonic() - started:.0f} s."
    question = "How often does the nightly verdict raise a false alarm, and what does it catch?"
    files = {"-alarms": (ALARMS, alarms), "-caught": (CAUGHT, hits)}
    publish(question, lines, place, wanted.out, files)


if __name__ == "__main__":
    main()
