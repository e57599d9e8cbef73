"""Simulates the smallest changes that are seen, and slower stages.

Run ``python benchmarks/nightly_commits.py --out benchmarks/results/nightly-commits.md``. How much
figures vary comes from ``nightly-noise.json`` as in ``nightly_verdict.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from _page import options, publish, table
from nightly_verdict import (
    LIMITS,
    METRICS,
    MONTH,
    RESULTS,
    SETTINGS,
    Floats,
    Noise,
    blocks,
    noise_of,
)
from rich.console import Console
from scipy.stats import binomtest, chi2

from orchestrator.nightly.verdict.chart import Chart
from orchestrator.nightly.verdict.stages import contrasts, slower

GOOD_NIGHTS = 30
SHIPPED = {"train": 4, "refine": 2, "calibrate": 5}
"""Recipes of the shipped benchmark by the stage whose speed they show."""
SEEDS = 3

SAID = """\
Planted in one cell: the change that `detectable` gives after {good} nights. Cells that never vary
are left out.

Stages that take 3 % longer, of the shipped benchmark (4 trainings, 2 refinements, 5 calibrations, 3
seeds), 60 nights before the change; {own:.0%} of noise of each recipe and seed:

{stages}"""
COLUMNS = ("setting", "metric", "caught on the second night", "share")
LOOKED_AT = ("acc", "ece", "aece", "cwece", "nll", "images_per_second", "wall_seconds")


def sight(noise: Noise, metric: str, trials: int, seed: int) -> tuple[int, int]:
    """Return how many planted changes of the stated size are in alarm, and of how many."""
    rng = np.random.default_rng(seed)
    columns = [c for c, name in enumerate(METRICS) if name == metric]
    column = np.resize(columns, trials)
    chart = Chart(METRICS, LIMITS, (trials,))
    worse = chart.scales.worse(noise.draw(rng, GOOD_NIGHTS + 2, trials))
    for night in worse[:GOOD_NIGHTS]:
        chart.advance(night)
    cell = (np.arange(trials), column)
    planted = chart.detectable(chart.judge(worse[GOOD_NIGHTS]))[cell]
    for night in worse[GOOD_NIGHTS:]:
        night[cell] += planted
        chart.advance(night)
    return int(chart.alarmed[cell].sum()), trials


def stage_nights(
    machine: Floats, own: float, nights: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """Return logarithms of times (nights, recipes x seeds) of each stage."""
    common = blocks(rng, machine, nights, 1)
    return {
        stage: common + own * rng.standard_t(3, (nights, SEEDS * recipes)) / np.sqrt(3)
        for stage, recipes in SHIPPED.items()
    }


def slower_stages(
    machine: Floats, own: float, trials: int, histories: int, seed: int
) -> Iterator[str]:
    """Yield sentences on slowdowns that are named and on false alarms."""
    rng, threshold = np.random.default_rng(seed), float(np.log1p(0.015))
    quiet, months, false = 60, 0.0, 0
    for _ in range(histories):
        relative = contrasts(stage_nights(machine, own, 600, rng))
        months += (600 - quiet) / MONTH
        for series in relative.values():
            raised = [
                slower(series[max(0, night - 89) : night + 1], threshold) is not None
                for night in range(quiet, 600)
            ]
            false += sum(
                now and not before for before, now in zip([False, *raised], raised, strict=False)
            )
    low, high = _poisson(false)
    yield (
        f"- False alarms: {false} in {months:.0f} months, {false / months:.3f} a month "
        f"({low / months:.3f} to {high / months:.3f})."
    )
    for stage in SHIPPED:
        named = other = 0
        for _ in range(trials):
            times = stage_nights(machine, own, quiet + 3, rng)
            times[stage][quiet:] += np.log(1.03)
            told = {
                name
                for night in (quiet + 1, quiet + 2)
                for name, series in contrasts(times).items()
                if slower(series[: night + 1], threshold)
            }
            named += stage in told
            other += bool(told - {stage})
        told_ = f"{_share(named, trials)} named within 3 nights"
        yield f"- `{stage}`: {told_}; another one beside it {other} times."


def _poisson(count: int) -> tuple[float, float]:
    low = float(chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0
    return low, float(chi2.ppf(0.975, 2 * count + 2)) / 2


def _share(hits: int, of: int) -> str:
    low, high = binomtest(hits, of).proportion_ci(method="wilson")
    return f"{hits} of {of}, {100 * hits / of:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    """Simulate, and print or write the tables."""
    parser = options(__doc__)
    parser.add_argument("--noise", type=Path, default=RESULTS / "nightly-noise.json")
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--histories", type=int, default=20)
    wanted = parser.parse_args()
    measured = json.loads(wanted.noise.read_text(encoding="utf-8"))
    started = time.monotonic()
    settings = [noise_of(setting, measured) for setting in SETTINGS[:3]]
    with Console(stderr=True).status("simulating") as status:
        status.update("planting changes of the stated sizes")
        seen = []
        for noise, metric in product(settings[1:], LOOKED_AT):
            hits, of = sight(noise, metric, 4 * wanted.trials, 7)
            seen.append((noise.name, metric, f"{hits} of {of}", f"{100 * hits / of:.1f} %"))
        status.update("slowing stages down")
        machine = np.array(measured["cost"]["process_seconds"][0])
        own = settings[0].steady
        stages = slower_stages(machine, own, wanted.trials, wanted.histories, 8)
        said = SAID.format(good=GOOD_NIGHTS, own=own, stages="\n".join(stages))
    shown = table(COLUMNS, seen[: len(LOOKED_AT)], 2)
    place = f"{measured['setting']}; simulated in {time.monotonic() - started:.0f} s."
    question = "Does the smallest change that the nightly report names raise an alarm?"
    publish(question, [*shown, "", said], place, wanted.out, {"": (COLUMNS, seen)})


if __name__ == "__main__":
    main()
