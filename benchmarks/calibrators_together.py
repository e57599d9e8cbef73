"""Many trials of a calibrator in common passes over the logits, against one by one.

A trial is what the ``calibrate`` stage computes: a fit on all rows and one for each of five folds.
Run it as

    OMP_NUM_THREADS=1 python benchmarks/calibrators_together.py \
        --out benchmarks/results/calibrators-together.md

The trials of a recipe differ in one hyper-parameter, spread over its range. Times are of the
process, not of the clock on the wall, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import describe
from torch import Tensor

from trainables.calibrators import (
    Calibrator,
    calibrator_from_recipe,
    cross_fit,
    cross_fit_together,
)

Build = Callable[[], Calibrator]
Trial = tuple[Calibrator, Tensor]

SEARCHED = {
    "ts-ls": ("smoothing", np.linspace(0.0, 0.2, 64)),
    "ts-fl": ("gamma", np.linspace(0.0, 5.0, 64)),
    "cts": ("shrinkage", np.geomspace(0.01, 100.0, 64)),
    "vs": ("weight_decay", np.linspace(0.0, 0.01, 64)),
}
SHAPES = ((500, 10), (5000, 10), (5000, 100))
TEMPERATURE = 2.0


def draw_rows(rows: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return float32 logits whose labels are drawn from their softmax at a temperature of 2."""
    draw = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(rows, classes, generator=draw)
    labels = torch.multinomial((logits / TEMPERATURE).softmax(1), 1, generator=draw)
    return logits, labels.squeeze(1)


def one_by_one(builds: Sequence[Build], logits: Tensor, labels: Tensor) -> list[Trial]:
    """Fit on all rows and cross-fit, a fit at a time."""
    return [(build().fit(logits, labels), cross_fit(build, logits, labels)) for build in builds]


def timed(
    run: Callable[[Sequence[Build], Tensor, Tensor], list[Trial]], *arguments: Any
) -> tuple[float, list[Trial]]:
    """Return the seconds that a run keeps the process busy, and its outcome."""
    started = time.process_time()
    found = run(*arguments)
    return time.process_time() - started, found


def furthest(ones: Sequence[Trial], others: Sequence[Trial]) -> tuple[float, float]:
    """Return the largest difference of a parameter, and of a cross-fitted log-probability."""
    parameters, scores = 0.0, 0.0
    for (one, scored), (other, scored_too) in zip(ones, others, strict=True):
        state, state_too = one.state_dict(), other.state_dict()
        away = [float((state[name] - state_too[name]).abs().max()) for name in state]
        parameters = max(parameters, *away)
        scores = max(scores, float((scored - scored_too).abs().max()))
    return parameters, scores


def measure(recipe: str, shape: tuple[int, int], trials: int) -> str:
    """Return a row of the table."""
    logits, labels = draw_rows(*shape)
    name, values = SEARCHED[recipe]
    builds = [partial(calibrator_from_recipe, recipe, {name: float(v)}) for v in values[:trials]]
    one_by_one(builds[:1], logits, labels)
    alone, expected = timed(one_by_one, builds, logits, labels)
    single = sum(timed(cross_fit_together, [build], logits, labels)[0] for build in builds)
    together, found = timed(cross_fit_together, builds, logits, labels)
    parameters, scores = furthest(expected, found)
    return (
        f"| {recipe} | {shape[0]} | {shape[1]} | {trials} | {alone:.2f} | {single:.2f} | "
        f"{together:.2f} | {alone / together:.1f} | {parameters:.0e} | {scores:.0e} |"
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--only", nargs="*", choices=SEARCHED, default=list(SEARCHED))
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(recipe, shape, wanted.trials) for shape in SHAPES for recipe in wanted.only]
    text = "\n".join(
        [
            "# Calibrators together",
            "",
            f"{describe(torch.device('cpu'))}; seconds of the process, one run each.",
            "",
            "- *one by one*: each fit on its own; *a trial at a time*: the six fits of a trial in",
            "  common passes; *together*: all fits of all trials in common passes.",
            "- *faster*: one by one / together.",
            "- *Δ*: largest difference between one by one and together, of a fitted parameter and",
            "  of a cross-fitted log-probability (in float32).",
            "",
            "| recipe | n | K | trials | one by one | a trial at a time | together | faster "
            "| Δ parameter | Δ log p |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            *rows,
            "",
        ]
    )
    sys.stdout.write(text)
    if wanted.out:
        wanted.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
