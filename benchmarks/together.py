"""Heads trained together against the same heads trained one by one.

Run it as

    OMP_NUM_THREADS=1 python benchmarks/together.py

Seconds are those of the process, so that other work on the machine does not count, for one thread.
What a study of full size takes is extrapolated from an epoch of a few heads: it is proportional to
epochs and trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _machine import describe

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


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    for shape in HEADS:
        print(measure_heads(shape), flush=True)
    print(f"\n{describe(torch.device('cpu'))}")


if __name__ == "__main__":
    main()
