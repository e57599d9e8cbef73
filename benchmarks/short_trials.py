"""Short trials on more workers than cores, as calsweep and as Tune's own scheduler choose them.

    python benchmarks/short_trials.py --trials 200 --out page.md

Trials fit a temperature in milliseconds, where a worker takes seconds to start. Tune's scheduler
gives a free worker to the oldest trial that waits, and ends the one being started for it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _page import load, options, publish, setting, table

from orchestrator.cluster.local import join_cluster
from orchestrator.loop import Loop, Pause, Source
from trainables.data import SplitSpec, prepare
from trainables.jobs import FitWork, Job, Report

QUESTION = "What does leaving Tune's choice of a worker gain on short trials?"


class Fits(Source):
    """Gives out fits, each with a share of a CPU, and keeps when they ended."""

    def __init__(self, data: Path, trials: int, share: float) -> None:
        self.sizes: Sequence[tuple[float, float]] = ((share, 0.0),)
        work = FitWork(data=str(data), calibrators={"ts": ("ts", {})}, metrics=("ece",))
        self._left = [
            Job(key=str(number), group="fits", number=number, work=work, cpus=share)
            for number in range(trials)
        ]
        self.ends: list[float] = []

    def next(self) -> Job | Pause:
        """Return the next fit."""
        return self._left.pop(0) if self._left else Pause.DONE

    def ended(self, job: Job, report: Report) -> None:
        """Note the time."""
        self.ends.append(time.monotonic())


def seconds(folder: Path, trials: int, workers: int, tunes_own: bool) -> tuple[float, float]:
    """Return the seconds of all trials, and of those after the first had ended."""
    with join_cluster(None):
        from ray.tune.schedulers import FIFOScheduler

        from orchestrator.executors import ray_tune

        ours = ray_tune.OrderOfSearch
        fits = Fits(folder / "data", trials, (os.cpu_count() or 1) / workers)
        ray_tune.OrderOfSearch = FIFOScheduler if tunes_own else ours  # type: ignore[misc,assignment]
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as place:
                ray_tune.RayTune(Path(place), Path(place)).run(Loop(fits, lambda _: None, 1), False)
        finally:
            ray_tune.OrderOfSearch = ours  # type: ignore[misc]
    return fits.ends[-1] - started, fits.ends[-1] - fits.ends[0]


def measure(wanted: argparse.Namespace) -> list[str]:
    """Return the lines of the table."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        rows_of = {"logits": rng.normal(size=(80, 3)), "labels": rng.integers(0, 3, 80)}
        np.savez(folder / "l.npz", **rows_of)
        split = SplitSpec(validation=30, test=0.5)
        made = prepare(f"logits:{folder / 'l.npz'}", folder, split, folder / "made")
        (folder / "data").symlink_to(made.directory)
        for workers in wanted.workers:
            pairs = [
                [seconds(folder, wanted.trials, workers, tunes) for tunes in (True, False)]
                for _ in range(wanted.pairs)
            ]
            tune, ours = np.array(pairs).transpose(1, 2, 0)
            ratio = np.median(tune[0] / ours[0])
            shown = [" ".join(f"{value:.1f}" for value in each) for each in (*tune, *ours)]
            rows.append([workers, shown[0], shown[2], f"{ratio:.1f}x", shown[1], shown[3]])
    heads = ["workers", "Tune's choice, s", "calsweep's, s", "ratio"]
    heads += ["after the first end: Tune's", "calsweep's"]
    said = f"{wanted.trials} fits of milliseconds, {wanted.pairs} pairs in turn."
    return [*table(heads, rows), "", said]


def main() -> None:
    """Measure and write the page."""
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--pairs", type=int, default=3)
    wanted = parser.parse_args()
    lines = measure(wanted)
    place = f"{setting('ray', 'torch')}, load {load()}."
    publish(QUESTION, lines, place, wanted.out)


if __name__ == "__main__":
    main()
