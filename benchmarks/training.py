"""Compares the images per second of our engine with the loop in the papers' repositories.

Run ``python benchmarks/training.py --out benchmarks/results/training-cpu.md``, or on a GPU
``python benchmarks/training.py --device cuda --model resnet50 --steps 200 --workers 8
--out benchmarks/results/training-gpu.md``. Ray is not needed.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
from _machine import clock, crops_a_second, describe, training_images
from _page import options, publish, table
from _plain_loop import PlainLoop
from rich.console import Console
from rich.progress import track

from trainables.methods import build_method
from trainables.stages.engine import Trainer
from trainables.stages.protocols import Protocol

ENGINE, LOOP = "our engine", "plain loop"

COLUMNS = ("", "images per second", "per second of CPU time")
SAID = """\
Both train the same network from the same weights with cross-entropy and SGD on random crops and
flips. The plain loop uses float32 and a DataLoader whose workers augment PIL images, and reads the
loss after every step. The two alternate, with a short epoch each per round. *Images per second*
are medians over rounds ± half the interquartile range; *ratio* is the median over rounds (smallest
to largest)."""


@dataclass
class Side:
    """One of the two training loops.

    Attributes:
        name: Name in tables.
        epoch: Runs one short epoch.
        images: Number of images per epoch.
        wall: Images per wall-clock second, by round.
        cpu: Images per CPU second, by round.
    """

    name: str
    epoch: Callable[[], object]
    images: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, device: torch.device) -> None:
        """Run one round."""
        started, used = clock(device), processor_seconds()
        self.epoch()
        self.wall.append(self.images / (clock(device) - started))
        self.cpu.append(self.images / (processor_seconds() - used))


def processor_seconds() -> float:
    """Return the CPU seconds of this process and its living children."""
    process = psutil.Process()
    times = [part.cpu_times() for part in (process, *process.children(recursive=True))]
    return sum(entry.user + entry.system for entry in times)


def sides(wanted: argparse.Namespace) -> tuple[Side, Side]:
    """Return our engine and the plain loop."""
    count = wanted.steps * wanted.batch_size
    arrays, info = training_images(wanted.data, count)
    device = torch.device(wanted.device)
    protocol = Protocol(
        epochs=wanted.rounds + 1,
        batch_size=wanted.batch_size,
        lr=0.01,
        augmentation="crop-flip",
        compile=wanted.compile,
    )
    method = build_method({"ce": {}})
    precision = "bfloat16" if device.type == "cuda" else "float32"
    trainer = Trainer(wanted.model, method, arrays, info, protocol, 0, device, precision)
    loop = PlainLoop(wanted.model, arrays, info, protocol, 0, device, wanted.workers)
    return (
        Side(ENGINE, trainer.train_epoch, len(arrays.labels)),
        Side(LOOP, loop.train_epoch, len(arrays.labels)),
    )


def spread(values: list[float]) -> str:
    """Return the median with half the interquartile range."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:,.0f} ± {(high - low) / 2:,.0f}"


def ratios(mine: list[float], theirs: list[float]) -> str:
    """Return the median ratio with the smallest and the largest."""
    values = np.asarray(mine) / np.asarray(theirs)
    return f"{np.median(values):.2f} ({values.min():.2f} to {values.max():.2f})"


def rows_of(mine: Side, theirs: Side) -> list[list[str]]:
    """Return the rows of the table."""
    rows = [[side.name, spread(side.wall), spread(side.cpu)] for side in (mine, theirs)]
    return [*rows, ["ratio", ratios(mine.wall, theirs.wall), ratios(mine.cpu, theirs.cpu)]]


def main() -> None:
    """Measure and publish the page."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true", help="torch.compile in the engine")
    parser.add_argument("--data", type=Path, help=".npz of images; random ones by default")
    parser.add_argument("--steps", type=int, default=10, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2, help="of the plain loop")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch on a processor")
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    device = torch.device(wanted.device)
    mine, theirs = sides(wanted)
    mine.epoch()
    theirs.epoch()
    for _ in track(range(wanted.rounds), "rounds", console=Console(stderr=True)):
        mine.measure(device)
        theirs.measure(device)
    kind = "random images" if wanted.data is None else wanted.data.name
    shape = f"{wanted.model}, batches of {wanted.batch_size}, n = {wanted.rounds} rounds of "
    shape += f"{wanted.steps} batches, {kind}."
    lines = [
        *table(COLUMNS, rows_of(mine, theirs)),
        "",
        shape,
        SAID,
        "",
        f"`imagenet` decodes {crops_a_second():.0f} crops of 224 pixels per second of CPU time.",
    ]
    question = f"How fast does the engine train on {wanted.device}?"
    publish(question, lines, f"{describe(device)}.", wanted.out)


if __name__ == "__main__":
    main()
