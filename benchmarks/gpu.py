"""Measures on a GPU what it is for: a network's throughput, many heads at once, a network tracked.

Run it as

    python benchmarks/gpu.py --out benchmarks/results/gpu.md

on a machine with a card. It does all three in one process, side by side with what they are compared
with. ``--data FOLDER`` says where CIFAR-10 lies, prepared as sweeps have it; without it the third
part is left out, and says so. Where there is no card it says that, and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _machine import clock, describe, training_images
from _plain_loop import PlainLoop

from orchestrator.running.run import run_sweep
from orchestrator.storage.journal import read_events
from orchestrator.sweep.spec import parse_sweep
from trainables.common.devices import default_device
from trainables.methods import build_method
from trainables.refinements import HeadsTogether, HeadTrainer, build_refinement
from trainables.stages.engine import Trainer
from trainables.stages.protocols import Protocol

BATCH, WORKERS = 128, 8
STEPS, ROUNDS = 200, 5
HEADS, FEATURES, CLASSES, ROWS = 64, 2048, 100, 45_000
ACCURACY = 0.94
SWEEP = """
name: gpu
tasks:
  - name: cifar10/resnet18/gpu
    dataset: cifar10
    model: resnet18
    protocol:
      {{epochs: {epochs}, batch_size: 512, lr: 0.4, schedule: cosine, warmup: 3, nesterov: true,
        augmentation: crop-flip, compile: {compiled}}}
recipes: [ls]
search: {{trials: {trials}, sampler: random}}
resources: {{concurrent: 1, train: {{cpu: 2, gpu: 1}}}}
data_root: {data}
storage: {storage}
"""

EXPLANATION = f"""\
- *ResNet-50*: images a second of short epochs of {STEPS} batches of {BATCH} random images of
  CIFAR-10's form, random crops and flips, cross-entropy; the engine (bfloat16, channels last,
  images on the card) and the papers' loop (a DataLoader with {WORKERS} workers, channels first,
  float32, a loss read back every step) in turn, {ROUNDS} rounds after one that does not count.
  *compiled* is the engine with `compile: true`. Medians, with the smallest and largest.
- *heads*: one epoch of {HEADS} MaC-Cal heads (one width, {ROWS:,} rows of {FEATURES:,} features,
  {CLASSES} classes), together and one by one; the second epoch counts.
- *tracked*: a sweep of trials of `resnet18` on CIFAR-10, from a trial's start to its end as the
  journal has them, tracked in MLflow; the accuracy is the validation rows'.
"""


def spread(values: list[float]) -> str:
    """Return the median with the smallest and largest."""
    return f"{np.median(values):,.4g} ({min(values):,.4g} to {max(values):,.4g})"


def rates(run: dict[str, Callable[[], object]], device: torch.device) -> dict[str, list[float]]:
    """Return images a second of each, in turn."""
    for epoch in run.values():
        epoch()
    found: dict[str, list[float]] = {name: [] for name in run}
    for _ in range(ROUNDS):
        for name, epoch in run.items():
            started = clock(device)
            epoch()
            found[name].append(STEPS * BATCH / (clock(device) - started))
    return found


def throughput(device: torch.device) -> list[str]:
    """Return the lines on ResNet-50."""
    arrays, info = training_images(None, STEPS * BATCH)

    def engine(compiled: bool) -> Callable[[], object]:
        protocol = _protocol(compiled)
        method = build_method({"ce": {}})
        return Trainer(
            "resnet50", method, arrays, info, protocol, 0, device, "bfloat16"
        ).train_epoch

    loop = PlainLoop("resnet50", arrays, info, _protocol(False), 0, device, WORKERS)
    found = rates(
        {"engine": engine(False), "compiled": engine(True), "plain loop": loop.train_epoch}, device
    )
    plain = np.asarray(found["plain loop"])
    lines = ["| ResNet-50 | images a second | times the plain loop |", "| --- | ---: | ---: |"]
    return lines + [
        f"| {name} | {spread(values)} | {spread(list(np.asarray(values) / plain))} |"
        for name, values in found.items()
    ]


def _protocol(compiled: bool) -> Protocol:
    return Protocol(
        epochs=ROUNDS + 1, batch_size=BATCH, lr=0.01, augmentation="crop-flip", compile=compiled
    )


def heads(device: torch.device) -> list[str]:
    """Return the lines on many heads."""
    draw = torch.Generator().manual_seed(0)
    views = [torch.randn(ROWS, FEATURES, generator=draw).to(device)]
    labels = torch.randint(0, CLASSES, (ROWS,), generator=draw)

    def made() -> list[HeadTrainer]:
        return [
            HeadTrainer(
                build_refinement("macal", epochs=2, gamma=0.9 + 0.001 * number),
                views,
                labels,
                num_classes=CLASSES,
                batch_size=BATCH,
                momentum=0.9,
                weight_decay=5e-4,
                seed=0,
                device=device,
            )
            for number in range(HEADS)
        ]

    alone, together = made(), HeadsTogether(made())
    taken = {}
    for name, run in (
        ("one by one", lambda: [head.train_epoch() for head in alone]),
        ("together", together.train_epoch),
    ):
        run()
        started = clock(device)
        run()
        taken[name] = clock(device) - started
    ratio = taken["one by one"] / taken["together"]
    rows = [f"| {name} | {seconds:.3g} |" for name, seconds in taken.items()]
    header = [f"| {HEADS} heads | seconds an epoch |", "| --- | ---: |"]
    return [*header, *rows, f"| ratio | {ratio:.1f} |"]


def tracked(data: Path | None, epochs: int, trials: int, compiled: bool) -> list[str]:
    """Return the lines on trials that are tracked."""
    if data is None:
        return ["Tracked trials were not measured: `--data` did not say where CIFAR-10 lies."]
    with tempfile.TemporaryDirectory() as storage:
        text = SWEEP.format(
            epochs=epochs,
            trials=trials,
            compiled=str(compiled).lower(),
            data=data.resolve(),
            storage=storage,
        )
        outcome = run_sweep(parse_sweep(text, "gpu"))
        if outcome.status != "finished":
            raise RuntimeError(f"the sweep ended as {outcome.status}")
        events = read_events(outcome.journal)[0]
    starts = {event.key: event.time for event in events if event.event == "trial_started"}
    ended = [event for event in events if event.event == "trial_finished"]
    rows = [
        f"| {number} | {(event.time - starts[event.key]) / 1000:.2f} "
        f"| {event.metrics['val_acc']:.2%} |"
        for number, event in enumerate(ended, 1)
    ]
    header = [f"| trial of {epochs} epochs | seconds | accuracy |", "| ---: | ---: | ---: |"]
    reached = sum(event.metrics["val_acc"] >= ACCURACY for event in ended)
    return [*header, *rows, "", f"{reached} of {len(ended)} reached {ACCURACY:.0%}."]


def main() -> None:
    """Measure, print the page and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--epochs", type=int, default=20, help="of a tracked trial")
    parser.add_argument("--trials", type=int, default=3, help="tracked")
    parser.add_argument("--compile", action="store_true", help="the tracked trials, too")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    device = default_device()
    if device.type != "cuda":
        sys.exit("no card: torch sees no CUDA device here, so that nothing was measured")
    parts = [
        ["# On a GPU", "", EXPLANATION, describe(device)],
        ["## ResNet-50", "", *throughput(device)],
        ["## Heads", "", *heads(device)],
        ["## Tracked", "", *tracked(options.data, options.epochs, options.trials, options.compile)],
    ]
    text = "\n\n".join("\n".join(part) for part in parts) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
