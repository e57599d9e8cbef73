"""Heads trained together against the same heads trained one by one, and calibrations on their own.

Run it as

    OMP_NUM_THREADS=1 python benchmarks/together.py

Seconds are those of the process, so that other work on the machine does not count, for one thread.
What a study of full size takes is extrapolated from an epoch of a few heads and a few calibrations:
both are proportional to epochs and trials.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from _machine import describe
from torch import Tensor

from trainables.calibrators import calibrator_from_recipe, cross_fit
from trainables.refinements import HeadsTogether, HeadTrainer, build_refinement

TRIALS, EPOCHS = 50, 25
# Rows, features, classes, heads, width of the hidden layer (0: those of a search) and kind.
HEADS = (
    (50_000, 512, 100, 8, 128, "macal"),
    (50_000, 512, 100, 8, 0, "macal"),
    (25_000, 2048, 100, 8, 128, "macal"),
    (50_000, 512, 100, 8, 0, "tst"),
)
WIDTHS = 16, 1024
# Rows, classes and how many calibrations are measured.
CALIBRATIONS = ((5_000, 10, 20), (5_000, 100, 10), (25_000, 100, 4), (25_000, 1000, 1))
SEARCHED = {
    "ts-ls": ("smoothing", np.linspace(0.0, 0.2, TRIALS)),
    "cts": ("shrinkage", np.geomspace(0.01, 100.0, TRIALS)),
    "vs": ("weight_decay", np.linspace(0.0, 0.01, TRIALS)),
}
NEWTON_CLASSES = 100  # Vector scaling of more classes takes too long here.


def seconds(run: Callable[[], Any]) -> float:
    """Return how long a call keeps the process busy."""
    started = time.process_time()
    run()
    return time.process_time() - started


def draw_heads(
    rows: int, features: int, classes: int, count: int, width: int, kind: str
) -> list[HeadTrainer]:
    """Return heads that differ in the searched parameters, on normal features."""
    draw = torch.Generator().manual_seed(0)
    views = [torch.randn(rows, features, generator=draw)]
    labels = torch.randint(0, classes, (rows,), generator=draw)
    widths = np.geomspace(*WIDTHS, count).round().astype(int).tolist() if not width else [width]
    heads = []
    for index in range(count):
        own = {"gamma": 0.9 + 0.002 * index, "hidden": widths[index % len(widths)]}
        parameters: dict[str, Any] = own if kind == "macal" else {}
        heads.append(
            HeadTrainer(
                build_refinement(kind, epochs=EPOCHS, lr=0.1 * 0.9**index, **parameters),
                views,
                labels,
                num_classes=classes,
                batch_size=128,
                momentum=0.9,
                weight_decay=5e-4,
                seed=0,
            )
        )
    return heads


def measure_heads(shape: tuple[int, int, int, int, int, str]) -> str:
    """Return a row of the table of heads."""
    rows, features, classes, count, width, kind = shape
    alone, members = draw_heads(*shape), draw_heads(*shape)
    one_by_one = sum(seconds(head.train_epoch) for head in alone)
    together = seconds(HeadsTogether(members).train_epoch)
    whole = TRIALS * EPOCHS / count / 60
    return (
        f"| {kind} | {rows} | {features} | {classes} | {width or 'searched'} | {count} "
        f"| {one_by_one:.1f} | {together:.1f} | {one_by_one / together:.2f} "
        f"| {(one_by_one - together) * whole:.0f} |"
    )


def draw_rows(rows: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return float32 logits whose labels are drawn from their softmax at a temperature of 2."""
    draw = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(rows, classes, generator=draw)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=draw)
    return logits, labels.squeeze(1)


def calibrate(recipe: str, values: Sequence[float], logits: Tensor, labels: Tensor) -> None:
    """Compute a trial's calibrate stage for each value of the searched parameters."""
    for value in values:
        build = partial(calibrator_from_recipe, recipe, {SEARCHED[recipe][0]: float(value)})
        build().fit(logits, labels)
        cross_fit(build, logits, labels)


def measure_calibrations(rows: int, classes: int, count: int) -> list[str]:
    """Return rows of the table of calibrations."""
    logits, labels = draw_rows(rows, classes)
    found = []
    for recipe, (_, values) in SEARCHED.items():
        if recipe == "vs" and classes > NEWTON_CLASSES:
            continue
        some = values[np.linspace(0, TRIALS - 1, count).astype(int)]
        each = seconds(lambda r=recipe, v=some: calibrate(r, v, logits, labels)) / count
        found.append(
            f"| {recipe} | {rows} | {classes} | {count} | {each:.2f} | {TRIALS * each:.0f} |"
        )
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("heads", "calibrations"))
    only = parser.parse_args().only
    torch.set_num_threads(1)
    calibrate("ts-ls", [0.1], *draw_rows(100, 10))
    if only != "calibrations":
        for shape in HEADS:
            sys.stdout.write(measure_heads(shape) + "\n")
            sys.stdout.flush()
    if only != "heads":
        for sizes in CALIBRATIONS:
            sys.stdout.write("\n".join(measure_calibrations(*sizes)) + "\n")
            sys.stdout.flush()
    sys.stdout.write(f"\n{describe(torch.device('cpu'))}\n")


if __name__ == "__main__":
    main()
