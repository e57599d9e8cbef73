"""Simulates smallest changes that are seen, slower stages, and other detectors.

Run ``python benchmarks/nightly_commits.py --out benchmarks/results/nightly-commits.md``. How much
figures vary comes from ``nightly-noise.json`` as in ``nightly_verdict.py``. ``--peers PYTHON`` is
an environment of its own with ``pip install apache-otava asv``; without it that table is left out.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _page import options, publish
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
    step_alarms,
)
from rich.console import Console
from scipy.stats import binomtest, chi2

from orchestrator.nightly.verdict.chart import Chart
from orchestrator.nightly.verdict.series import worse_step
from orchestrator.nightly.verdict.stages import contrasts, slower

GOOD_NIGHTS = 30
SHIPPED = {"train": 4, "refine": 2, "calibrate": 5}
"""Recipes of the shipped benchmark by the stage whose speed they show."""
SEEDS = 3
NEAR = 5
"""Nights by which a detection may miss a change."""
PEERS = Path(__file__).with_name("_night_peers.py")

EXPLANATION = """\
# Changes seen, stages, and other detectors

Simulated by `benchmarks/nightly_commits.py` with the noise of
[nightly-noise.json](nightly-noise.json) and in the settings of
[the nightly verdict](nightly-verdict.md).

## The smallest change that is seen

Planted in one cell of a history: the very change that `detectable` gives after {good} nights. Cells
that never vary are left out: of them any larger change is caught, and no smaller one.

| setting | metric | caught on the second night | share |
| --- | --- | ---: | ---: |
{seen}

## A stage that takes 3 % longer

The shipped benchmark (4 trainings, 2 refinements, 5 calibrations, 3 seeds): the machine's nights as
measured, common to all stages, and {own:.0%} of noise of each recipe and seed, with the tails of
Student's t with 3 degrees of freedom. {quiet} nights before the change.

{stages}

## Other detectors on the same series

{series} series of 90 nights: all cells of whole benchmarks in settings A and B, in half of which
one cell gets worse by one to three times what matters in practice; and the measured nights of
`nightly-noise.json`. Every series may have one night that is worse alone. A detection counts within
{near} nights of the change, once, and only if it is for the worse. This verdict sees
one night after the other, the others see the whole series at once. Otava {otava} with its defaults,
E-divisive as Otava has it (100 permutations, 0.001), asv {asv}'s steps and regressions.

| detector | found | false | missed | precision | recall | F1 |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{peers}

Simulated in {seconds:.0f} s.
"""


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


class Sample(NamedTuple):
    """A series on the scale on which more is worse, and the night of its change, if it has one."""

    series: Floats
    changed: int | None


def samples(noise: Noise, histories: int, seed: int) -> tuple[Floats, list[list[int | None]]]:
    """Return nights (90, histories, 40) on ``Scales.worse``, and each cell's night of change."""
    rng = np.random.default_rng(seed)
    chart = Chart(METRICS, LIMITS, (histories,))
    worse = chart.scales.worse(noise.draw(rng, 90, histories))
    matters = chart.scales.thresholds(chart.scales.figures(np.median(worse, axis=0)))
    changed: list[list[int | None]] = [[None] * len(METRICS) for _ in range(histories)]
    for history in range(histories):
        for column in rng.choice(len(METRICS), 4, replace=False):
            worse[int(rng.integers(15, 85)), history, column] += 3 * matters[history, column]
        if history % 2:
            column, night = int(rng.integers(len(METRICS))), int(rng.integers(30, 75))
            size = rng.uniform(1.0, 3.0) * matters[history, column]
            worse[night:, history, column] += size
            changed[history][column] = night
    return worse, changed


def own_detections(worse: Floats) -> list[list[list[int]]]:
    """Return the nights on which this verdict says that each cell's changes began."""
    nights, histories, cells = worse.shape
    chart = Chart(METRICS, LIMITS, (histories,))
    found: list[list[list[int]]] = [[[] for _ in range(cells)] for _ in range(histories)]
    for night in range(nights):
        judged = chart.advance(worse[night])
        for history, cell in zip(*np.nonzero(chart.alarmed), strict=True):
            _add(found[history][cell], int(chart.since[history, cell]))
        stepped = step_alarms(worse[: night + 1], judged) & ~chart.alarmed
        for history, cell in zip(*np.nonzero(stepped), strict=True):
            _add(
                found[history][cell],
                _step(worse[: night + 1, history, cell], judged, history, cell),
            )
    return found


def _step(series: Floats, judged: Any, history: int, cell: int) -> int:
    at = worse_step(
        series, float(judged.noise[history, cell]), float(judged.threshold[history, cell])
    )
    assert at is not None
    return at[0].index


def _add(nights: list[int], night: int) -> None:
    if not any(abs(night - known) <= NEAR for known in nights):
        nights.append(night)


def compared(
    settings: Sequence[Noise], measured: dict[str, Any], histories: int, python: Path, seed: int
) -> tuple[list[str], int, dict[str, str]]:
    """Return a row for each detector, the number of series, and the peers' versions."""
    every: list[Sample] = []
    own: list[list[int]] = []
    for number, noise in enumerate(settings):
        worse, changed = samples(noise, histories, seed + number)
        for history, cells in enumerate(own_detections(worse)):
            for cell, nights in enumerate(cells):
                every.append(Sample(worse[:, history, cell], changed[history][cell]))
                own.append(nights)
    for series in measured["cost"]["process_seconds"]:
        chart = Chart(("wall_seconds",), LIMITS)
        told: list[int] = []
        for value in series:
            chart.advance(np.array([value]))
            if chart.alarmed[0]:
                _add(told, int(chart.since[0]))
        every.append(Sample(np.array(series), None))
        own.append(told)
    asked = json.dumps([sample.series.tolist() for sample in every])
    done = subprocess.run(
        [python, "-I", PEERS], input=asked, capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    rows = [_score("calsweep", every, own)]
    rows += [_score(name, every, nights) for name, nights in answer["found"].items()]
    return rows, len(every), answer["versions"]


def _score(name: str, every: Sequence[Sample], found: Sequence[Sequence[int]]) -> str:
    hits = false = missed = 0
    for sample, nights in zip(every, found, strict=True):
        near = [n for n in nights if sample.changed is not None and abs(n - sample.changed) <= NEAR]
        hits += bool(near)
        false += len(nights) - bool(near)
        missed += sample.changed is not None and not near
    precision, recall = hits / max(1, hits + false), hits / max(1, hits + missed)
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return f"| {name} | {hits} | {false} | {missed} | {precision:.3f} | {recall:.3f} | {f1:.3f} |"


def main() -> None:
    """Simulate, and print or write the tables."""
    parser = options(__doc__)
    parser.add_argument("--noise", type=Path, default=RESULTS / "nightly-noise.json")
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--peers", type=Path)
    wanted = parser.parse_args()
    measured = json.loads(wanted.noise.read_text(encoding="utf-8"))
    started = time.monotonic()
    settings = [noise_of(setting, measured) for setting in SETTINGS[:3]]
    with Console(stderr=True).status("simulating") as status:
        status.update("planting changes of the stated sizes")
        seen = []
        for noise in settings[1:]:
            for metric in (
                "acc",
                "ece",
                "aece",
                "cwece",
                "nll",
                "images_per_second",
                "wall_seconds",
            ):
                hits, of = sight(noise, metric, 4 * wanted.trials, 7)
                seen.append(
                    f"| {noise.name} | {metric} | {hits} of {of} | {100 * hits / of:.1f} % |"
                )
        status.update("slowing stages down")
        machine = np.array(measured["cost"]["process_seconds"][0])
        stages = list(
            slower_stages(machine, settings[0].steady, wanted.trials, wanted.histories, 8)
        )
        peers, count_, versions = ["| not compared | | | | | | |"], 0, {"otava": "", "asv": ""}
        if wanted.peers:
            status.update("asking other detectors")
            peers, count_, versions = compared(
                settings[:2], measured, wanted.histories, wanted.peers, 9
            )
    text = EXPLANATION.format(
        good=GOOD_NIGHTS,
        seen="\n".join(seen),
        own=settings[0].steady,
        quiet=60,
        stages="\n".join(stages),
        series=count_,
        near=NEAR,
        peers="\n".join(peers),
        seconds=time.monotonic() - started,
        **versions,
    )
    publish(text, wanted.out)


if __name__ == "__main__":
    main()
