"""Accuracy of our engine against the plain loop's: same network, schedule and seeds.

Run ``python benchmarks/accuracy.py --data cifar10.npz --out benchmarks/results/accuracy-cpu.md``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from _machine import describe, training_images
from _page import options, publish
from _plain_loop import PlainLoop
from rich.console import Console
from rich.progress import Progress
from scipy.stats import t as student
from torch import Tensor

from trainables.data import RowArrays, read_source
from trainables.methods import build_method
from trainables.metrics import calibration_report
from trainables.stages.engine import Trainer, predict
from trainables.stages.protocols import Protocol

METRICS = {"acc": "accuracy %", "nll": "NLL", "ece": "ECE %"}
LEVEL = 0.95

EXPLANATION = f"""\
The engine and the plain loop of `_plain_loop.py` train the same network from the same initial
weights with the same protocol; order and augmentation are drawn by each in its own way. Means over
the seeds with {LEVEL:.0%} intervals (Student's t); the difference is taken seed by seed. NLL in
nats, ECE over 15 bins.
"""


def held_out_images(path: Path, count: int) -> RowArrays:
    """Return the first test images of an .npz file."""
    test = read_source(f"npz:{path}", ".").test
    if test is None:
        raise SystemExit(f"{path} has no test images")
    return RowArrays(test.read(0, count), test.labels[:count])


def compare(options: argparse.Namespace, seed: int, progress: Progress) -> list[dict[str, float]]:
    """Train both with one seed and return their figures on the test images."""
    arrays, info = training_images(options.data, options.images)
    test = held_out_images(options.data, options.test_images)
    cpu = torch.device("cpu")
    protocol = Protocol(
        epochs=options.epochs,
        batch_size=options.batch_size,
        lr=0.1,
        schedule="cosine",
        augmentation="crop-flip",
    )
    method = build_method({"ce": {}})
    trainer = Trainer(options.model, method, arrays, info, protocol, seed, cpu)
    loop = PlainLoop(options.model, arrays, info, protocol, seed, cpu, options.workers)
    task = progress.add_task(f"seed {seed}", total=options.epochs)
    for _ in range(options.epochs):
        trainer.train_epoch()
        loop.train_epoch()
        progress.advance(task)
    logits = (
        predict(trainer.network, info.inputs.batcher(test.values)),
        loop.predict(torch.from_numpy(test.values)),
    )
    return [figures(rows, torch.from_numpy(test.labels)) for rows in logits]


def figures(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics of one training, accuracy and ECE in percent."""
    report = calibration_report(logits=logits, labels=labels)
    return {name: report[name] * (1 if name == "nll" else 100) for name in METRICS}


def interval(values: np.ndarray) -> str:
    """Return the mean with its interval."""
    half = student.ppf((1 + LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    mean = values.mean()
    return f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"


def table(results: list[list[dict[str, float]]]) -> str:
    """Return a Markdown table of both sides and their difference."""
    lines = ["| | our engine | plain loop | difference |", "| --- | ---: | ---: | ---: |"]
    for name, label in METRICS.items():
        mine, theirs = (np.array([seed[side][name] for seed in results]) for side in (0, 1))
        cells = (interval(mine), interval(theirs), interval(mine - theirs))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train, print the table and write it if asked to."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help=".npz with a test set")
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--test-images", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="of the plain loop")
    parser.add_argument("--threads", type=int, default=2)
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    with Progress(console=Console(stderr=True)) as progress:
        results = [compare(wanted, seed, progress) for seed in range(wanted.seeds)]
    setting = (
        f"{wanted.model} on {wanted.images:,} images of {wanted.data.name}, {wanted.epochs} "
        f"epochs of batches of {wanted.batch_size}, cosine schedule from 0.1, crops and flips; "
        f"n = {wanted.seeds} seeds; {wanted.test_images:,} test images."
    )
    machine = describe(torch.device("cpu"))
    text = "\n\n".join(
        [f"# Engine and plain loop\n\n{EXPLANATION.strip()}", setting, table(results), machine]
    )
    publish(text + "\n", wanted.out)


if __name__ == "__main__":
    main()
