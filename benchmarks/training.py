"""Images a second of our engine, against the loop that the papers' repositories use.

Run ``python benchmarks/training.py --out benchmarks/results/training-cpu.md``, or on a GPU
``python benchmarks/training.py --device cuda --model resnet50 --steps 200 --workers 8
--out benchmarks/results/training-gpu.md``. Neither needs Ray.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
from _machine import clock, describe, matrix_limit, training_images
from _plain_loop import PlainLoop
from rich.console import Console
from rich.progress import track
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from trainables.data import DatasetInfo
from trainables.methods import build_method
from trainables.stages.engine import Trainer, seeded_network
from trainables.stages.protocols import Protocol

ENGINE, LOOP = "our engine", "plain loop"

EXPLANATION = """\
Both train the same network from the same weights with cross-entropy and SGD on random crops and
flips of the same images. The plain loop has a DataLoader whose workers augment PIL images, float32
throughout and a loss read back every step. They run in turn, one short epoch each a round, after
one that does not count; its workers live on from round to round.

- *images a second* is on the wall, the median of the rounds with half the interquartile range.
- *ratio* is the median over the rounds of engine / loop, with the smallest and largest.
- *by CPU time* counts, in place of seconds on the wall, those of a processor that the process and
  its workers used: other programs on the machine distort them less.
"""


@dataclass
class Side:
    """One of the two that are compared.

    Attributes:
        name: What tables call it.
        epoch: Runs one short epoch.
        images: Images of an epoch.
        wall: Images a second of every round.
        cpu: Images a second of processor time of every round.
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
    """Return the processor time of this process and its living children."""
    process = psutil.Process()
    times = [part.cpu_times() for part in (process, *process.children(recursive=True))]
    return sum(entry.user + entry.system for entry in times)


def sides(options: argparse.Namespace) -> tuple[Side, Side, DatasetInfo]:
    """Return the engine, the loop and the facts of the images."""
    count = options.steps * options.batch_size
    arrays, info = training_images(options.data, count)
    device = torch.device(options.device)
    protocol = Protocol(
        epochs=options.rounds + 1,
        batch_size=options.batch_size,
        lr=0.01,
        augmentation="crop-flip",
        compile=options.compile,
    )
    method = build_method({"ce": {}})
    precision = "bfloat16" if device.type == "cuda" else "float32"
    trainer = Trainer(options.model, method, arrays, info, protocol, 0, device, precision)
    loop = PlainLoop(options.model, arrays, info, protocol, 0, device, options.workers)
    return (
        Side(ENGINE, trainer.train_epoch, len(arrays.labels)),
        Side(LOOP, loop.train_epoch, len(arrays.labels)),
        info,
    )


def operations(model: str, info: DatasetInfo, batch: int) -> float:
    """Return the floating-point operations of one image's training step."""
    network = seeded_network(model, info, 0)
    images = torch.zeros(batch, info.inputs.channels, *info.inputs.size)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(images), torch.zeros(batch, dtype=torch.long)).backward()
    return counter.get_total_flops() / batch


def spread(values: list[float]) -> str:
    """Return the median with half the interquartile range."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:,.0f} ± {(high - low) / 2:,.0f}"


def ratios(mine: list[float], theirs: list[float]) -> str:
    """Return the median ratio with its smallest and largest."""
    values = np.asarray(mine) / np.asarray(theirs)
    return f"{np.median(values):.2f} ({values.min():.2f} to {values.max():.2f})"


def table(mine: Side, theirs: Side) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| | images a second | by CPU time |", "| --- | ---: | ---: |"]
    lines += [
        f"| {side.name} | {spread(side.wall)} | {spread(side.cpu)} |" for side in (mine, theirs)
    ]
    lines.append(f"| ratio | {ratios(mine.wall, theirs.wall)} | {ratios(mine.cpu, theirs.cpu)} |")
    return "\n".join(lines)


def limit_line(options: argparse.Namespace, mine: Side, info: DatasetInfo) -> str:
    """Say which share of what the device can compute the engine used."""
    limit = matrix_limit(torch.device(options.device))
    needed = operations(options.model, info, min(options.batch_size, 8))
    used = needed * float(np.median(mine.wall))
    return (
        f"A training step takes {needed / 1e9:.3g} GFLOP an image, so the engine computed "
        f"{used / 1e12:.3g} TFLOP/s: {used / limit:.0%} of the {limit / 1e12:.3g} TFLOP/s that a "
        "large matrix product reached in the same precision on the same device."
    )


def main() -> None:
    """Measure, print the figures and add them to a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true", help="torch.compile in the engine")
    parser.add_argument("--data", type=Path, help=".npz of images; random ones by default")
    parser.add_argument("--steps", type=int, default=10, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2, help="of the plain loop")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch on a processor")
    parser.add_argument("--out", type=Path, help="Markdown file to add the figures to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    mine, theirs, info = sides(options)
    mine.epoch()
    theirs.epoch()
    for _ in track(range(options.rounds), "rounds", console=Console(stderr=True)):
        mine.measure(device)
        theirs.measure(device)
    compiled = ", compiled" if options.compile else ""
    title = (
        f"## {options.model}, batch {options.batch_size}, {options.device}{compiled}: "
        f"n = {options.rounds} rounds of {options.steps} batches, {options.workers} workers, "
        f"{'random images' if options.data is None else options.data.name}"
    )
    parts = [title, table(mine, theirs), limit_line(options, mine, info), describe(device)]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if options.out:
        before = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
        start = before or f"# Training speed\n\n{EXPLANATION}"
        options.out.write_text(f"{start}\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
