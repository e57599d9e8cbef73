"""What durable writes cost a trial: the same sweep with its fsyncs and without, by turns.

    python benchmarks/durability.py --pairs 20 --folder DISK

Both sweeps of a pair are of the same seed and compute here; which is first changes from pair to
pair. The processor's seconds do not tell how busy the machine was, so that the last line bounds the
cost on an idle one: what was waited for the disk, by those.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch
from _machine import describe
from _page import publish, table

from orchestrator.running.run import run_sweep
from orchestrator.storage.ledger import read_ledger
from orchestrator.sweep.spec import parse_sweep

SWEEP = """
name: durable
tasks: [{{dataset: digits, model: convnet, protocol: {{base: digits, epochs: {epochs}}}}}]
recipes: [ce, ls, ce+ts]
search: {{trials: 2}}
executor: local
resources: {{concurrent: 1}}
storage: {folder}/storage
"""


@dataclass
class Run:
    """One sweep: seconds on the wall and of the processor, its trials, and the waits for fsync."""

    durable: bool
    wall: float = 0.0
    processor: float = 0.0
    trials: int = 0
    waits: list[float] = field(default_factory=list)

    def fsync(self, handle: int) -> None:
        """Wait for the disk, if this run does."""
        started = time.perf_counter()
        if self.durable:
            FSYNC(handle)
        self.waits.append(time.perf_counter() - started)


FSYNC = os.fsync


def run(place: Path, durable: bool, epochs: int) -> Run:
    """Run the sweep in a new folder."""
    found = Run(durable)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        spec = parse_sweep(SWEEP.format(folder=folder, epochs=epochs), "durability")
        wall, processor = time.perf_counter(), time.process_time()
        with patch.object(os, "fsync", found.fsync):
            outcome = run_sweep(spec)
        found.wall = time.perf_counter() - wall
        found.processor = time.process_time() - processor
        assert outcome.status == "finished"
        found.trials = len(read_ledger(outcome.journal).trials)
    return found


def report(pairs: list[tuple[Run, Run]], epochs: int) -> None:
    """Publish the page, of pairs of a durable run and another."""
    ratios = sorted(one.wall / other.wall for one, other in pairs)
    low, high = sign_interval(len(ratios))
    durable = [one for one, _ in pairs]
    trials, waited = sum(r.trials for r in durable), sum(sum(r.waits) for r in durable)
    calls, processor = sum(len(r.waits) for r in durable), sum(r.processor for r in durable)
    median = f"{statistics.median(ratios):.3f} ({ratios[low]:.3f} to {ratios[high]:.3f})"
    rows = [
        (f"wall time with fsyncs / without, median of {len(pairs)} pairs", median),
        ("fsyncs a trial", f"{calls / trials:.1f}"),
        ("ms an fsync", f"{1000 * waited / calls:.2f}"),
        ("ms a trial", f"{1000 * waited / trials:.1f}"),
        ("share of the trial's wall time", f"{100 * waited / sum(r.wall for r in durable):.2f} %"),
        ("share of the trial's processor time", f"{100 * waited / processor:.2f} %"),
    ]
    said = f"{durable[0].trials} trials of up to {epochs} epochs a sweep."
    place = f"{describe(torch.device('cpu'))}."
    lines = [*table(["figure", "value"], rows), "", said]
    publish("What do durable writes cost a trial?", lines, place, None)


def sign_interval(count: int) -> tuple[int, int]:
    """Return the places of the sorted values between which the median lies with 95 %."""
    low = max(0, int(count / 2 - 1.96 * count**0.5 / 2))
    return low, count - 1 - low


def main() -> None:
    """Measure by turns and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(options.folder, True, options.epochs)  # What is imported and kept for good.
    pairs = []
    for number in range(options.pairs):
        order = (True, False) if number % 2 else (False, True)
        found = {durable: run(options.folder, durable, options.epochs) for durable in order}
        pairs.append((found[True], found[False]))
    report(pairs, options.epochs)


if __name__ == "__main__":
    main()
