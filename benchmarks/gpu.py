"""Measures training throughput, many heads at once, and trials on a GPU.

    python benchmarks/gpu.py --data FOLDER --out docs/results/gpu.md

``FOLDER`` contains CIFAR-10, or is an .npz file of it; without it no trials are measured. Every
part runs in its own process for at most ten minutes. If a part fails, the page has the reason, and
the other parts still run. ``--parts`` measures only some parts and keeps the page's other parts.
``--quick`` runs a few steps of everything, to test the script.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import clock, describe, macal_heads, training_images
from _page import table
from _plain_loop import PlainLoop

from orchestrator.storage.provenance import git_commit
from trainables.common.faults import reason_of
from trainables.data import SplitSpec, find_reader, prepare
from trainables.methods import build_method
from trainables.refinements import HeadsTogether, HeadTrainer
from trainables.stages import StageRequest, TaskData, evaluate_on_test, open_stage
from trainables.stages.engine import Trainer
from trainables.stages.protocols import Protocol, protocol_from
from trainables.store.artifacts import ArtifactStore

BATCH, WORKERS = 128, 8
STEPS, ROUNDS = 200, 5
HEADS, FEATURES, CLASSES, ROWS = 64, 2048, 100, 45_000
DEVICE = torch.device("cuda", 0)
LIMIT_SECONDS = 600  # Time limit per part.
RECIPE = {
    "batch_size": 512,
    "lr": 0.4,
    "schedule": "cosine",
    "warmup": 3,
    "nesterov": True,
    "augmentation": "crop-flip",
}
SAID = f"""\
- *Rates* of ResNet-50: epochs of {STEPS} batches of {BATCH}, random crops and flips, cross-entropy;
  median, smallest and largest of {ROUNDS} rounds. The engine uses bfloat16, channels last and
  images on the GPU. The plain loop uses a DataLoader with {WORKERS} workers and float32 (TF32
  convolutions), and reads the loss after every step. *recorded* is the engine with `graph: true`.
- *Heads*: one epoch of {HEADS} MaC-Cal heads on {ROWS:,} rows of {FEATURES:,} features and
  {CLASSES} classes, together and one by one.
- *Trials* of `resnet18` on CIFAR-10 in one process, from the request until the artifact is stored.
"""


@dataclass(frozen=True)
class Effort:
    """The size of the measurement: steps per epoch and number of measured epochs."""

    quick: bool = False
    steps: int = STEPS
    rounds: int = ROUNDS


def spread(values: list[float]) -> str:
    """Return the median with the smallest and the largest value."""
    middle, least, most = (
        f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
        for value in (np.median(values), min(values), max(values))
    )
    return f"{middle} ({least} to {most})"


def rates(
    make: dict[str, Callable[[], Any]], device: torch.device, effort: Effort
) -> tuple[dict[str, list[float]], list[str]]:
    """Return images per second of each loop, measured in turn, and notes."""
    found: dict[str, list[float]] = {name: [] for name in make}
    made: dict[str, Any] = {}
    said = []
    for turn in range(effort.rounds + 1):
        for name in list(found):
            try:
                made[name] = made.get(name) or make[name]()
                started = clock(device)
                made[name].train_epoch()
                taken = clock(device) - started
            except Exception as error:  # noqa: BLE001 - said in the page
                del found[name]
                said.append(f"- {name}: not measured: {reason_of(error)}")
                continue
            if turn:
                found[name].append(effort.steps * BATCH / taken)
    told = {name: each.remarks() for name, each in made.items() if isinstance(each, Trainer)}
    return found, said + [f"- {name}: {text}" for name, texts in told.items() for text in texts]


def throughput(device: torch.device, effort: Effort) -> list[str]:
    """Return the lines on ResNet-50."""
    arrays, info = training_images(None, effort.steps * BATCH)
    epochs = effort.rounds + 1

    def engine(name: str) -> Trainer:
        method, protocol = build_method({"ce": {}}), _protocol(epochs)
        modes = "bfloat16", "recorded" in name
        found = Trainer("resnet50", method, arrays, info, protocol, 0, device, *modes)
        torch.backends.cudnn.allow_tf32 = True  # For the papers' loop; it changes no bfloat16.
        return found

    def plain() -> PlainLoop:
        return PlainLoop("resnet50", arrays, info, _protocol(epochs), 0, device, WORKERS)

    make: dict[str, Callable[[], Any]] = {n: partial(engine, n) for n in ("engine", "recorded")}
    make["plain loop"] = plain
    found, said = rates(make, device, effort)
    rows, base = [], found.get("plain loop")
    for name, values in found.items():
        times = spread(list(np.asarray(values) / np.asarray(base))) if base else ""
        rows.append((name, spread(values), times))
    return [
        *table(["ResNet-50", "images per second", "relative to the plain loop"], rows),
        "",
        *said,
    ]


def _protocol(epochs: int) -> Protocol:
    return Protocol(epochs=epochs, batch_size=BATCH, lr=0.01, augmentation="crop-flip")


def heads(device: torch.device, effort: Effort) -> list[str]:
    """Return the lines on many heads."""
    count = effort.steps * BATCH if effort.quick else ROWS
    draw = torch.Generator().manual_seed(0)
    views = [torch.randn(count, FEATURES, generator=draw).to(device)]
    labels = torch.randint(0, CLASSES, (count,), generator=draw)

    def made() -> list[HeadTrainer]:
        return macal_heads(HEADS, views, labels, CLASSES, device)

    alone, together = made(), HeadsTogether(made())
    taken = {}
    # The first head that runs alone is the warm-up for all of them.
    for name, first, run in (
        ("one by one", alone[0].train_epoch, lambda: [head.train_epoch() for head in alone[1:]]),
        ("together", together.train_epoch, together.train_epoch),
    ):
        first()
        started = clock(device)
        run()
        taken[name] = clock(device) - started
    taken["one by one"] *= HEADS / (HEADS - 1)
    ratio = taken["one by one"] / taken["together"]
    rows = [(name, f"{seconds:.3g}") for name, seconds in taken.items()]
    return table([f"{HEADS} heads", "seconds per epoch"], [*rows, ("ratio", f"{ratio:.1f}")])


def dataset(data: Path) -> str:
    """Return the name of CIFAR-10 in sweep files, for a folder or an .npz file."""
    return f"npz:{data.resolve()}" if data.suffix == ".npz" else "cifar10"


def trials(device: torch.device, data: Path, epochs: int, count: int, graph: bool) -> list[str]:
    """Return the lines on trials in one process."""
    lines = [
        f"| trial of {epochs} epochs | seconds | accuracy | test, seconds | accuracy |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    protocol = protocol_from({**RECIPE, "epochs": epochs}).to_dict()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(dataset(data), data, SplitSpec(), Path(folder) / "data")
        store, task = ArtifactStore(Path(folder) / "store"), TaskData(prepared, device, graph)
        for seed in range(count):
            asked = StageRequest(
                "train",
                {"ls": {}},
                str(prepared.directory),
                "resnet18",
                protocol,
                seed,
                precision="bfloat16",
            )
            started = clock(device)
            run = open_stage(asked, store, task)
            while run.epoch < run.epochs:
                metrics = run.run_epoch()
            found = run.finish(metrics)
            stored = clock(device)
            tested, _ = evaluate_on_test(store, found.ref, prepared, device)
            training = f"{stored - started:.2f} | {metrics['val_acc']:.2%}"
            testing = f"{clock(device) - stored:.2f} | {tested['acc']:.2%}"
            lines.append(f"| {seed + 1} | {training} | {testing} |")
            said = run.remarks()
    return [*lines, "", *said]


def parts(options: argparse.Namespace) -> dict[str, Callable[[torch.device], list[str]]]:
    """Return the functions that measure each part on a device and return its lines."""
    effort = Effort(quick=True, steps=6, rounds=1) if options.quick else Effort()
    epochs, count = (4, 1) if options.quick else (options.epochs, options.trials)
    shape = options.data, epochs, count, options.graph
    missing = ["Not measured: use `--data` to name the folder of CIFAR-10."]
    return {
        "Rates": lambda device: throughput(device, effort),
        "Heads": lambda device: heads(device, effort),
        "Trials": lambda device: trials(device, *shape) if options.data else missing,
    }


def main() -> None:
    """Measure, print the page and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10, or an .npz file")
    parser.add_argument("--epochs", type=int, default=20, help="of a trial")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--graph", action="store_true", help="record the trials' steps")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything")
    parser.add_argument("--out", type=Path, help="Markdown file to write or to update")
    parser.add_argument("--parts", nargs="+", metavar="PART", help="such as Heads; else all")
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)  # For a single part.
    options = parser.parse_args()
    every = list(parts(options))
    if unknown := [name for name in options.parts or () if name not in every]:
        parser.error(f"unknown part {unknown[0]!r}; there are: {', '.join(every)}")
    if options.data:
        status = find_reader(dataset(options.data), options.data).check()
        if not status.present:
            parser.error(f"--data: {status.detail}; {status.remedy}")
    if not torch.cuda.is_available():  # This creates no CUDA context; only the parts need one.
        sys.exit("nothing was measured: torch finds no CUDA device on this machine")
    if options.lines:
        text = "\n".join(measured(options, options.parts[0]))
        options.lines.write_text(text, encoding="utf-8")
        return
    page = sections(options.out) if options.out else {}
    for name in options.parts or every:
        page[name] = in_a_process(name)
        sys.stdout.write(f"## {name}\n\n{page[name]}\n\n")
        sys.stdout.flush()
        if options.out:
            found = [f"## {part}\n\n{page[part]}\n" for part in every if part in page]
            text = "\n".join(["# How fast are training and heads on a GPU?\n", SAID, *found])
            options.out.write_text(text, encoding="utf-8")


def sections(page: Path) -> dict[str, str]:
    """Return the lines of each part of an existing page."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    _, *found = re.split(r"^## (.+)\n\n", text, flags=re.MULTILINE)
    return {name: lines.strip() for name, lines in zip(found[::2], found[1::2], strict=True)}


def measured(options: argparse.Namespace, part: str) -> list[str]:
    """Return the lines of a part, or the reason of its failure, with the machine's description."""
    started = time.monotonic()
    try:
        lines = parts(options)[part](DEVICE)
    except Exception as error:  # noqa: BLE001 - it is said in the page
        lines = [f"Not measured: {reason_of(error)}"]
    return [*lines, "", _told(options, time.monotonic() - started)]


def _told(options: argparse.Namespace, seconds: float) -> str:
    """Return hardware, time and code revision of the figures."""
    try:
        where = describe(DEVICE)
        most = f"{torch.cuda.max_memory_allocated(DEVICE) / 2**30:.2f} GiB of the card's memory"
    except RuntimeError as error:  # After a fault, a card may not return its name either.
        where, most = reason_of(error), "unknown memory"
    flags = [f" --{name}" for name in ("graph", "quick") if getattr(options, name)]
    command = f"benchmarks/gpu.py --epochs {options.epochs} --trials {options.trials}"
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    of = f"`{command}{''.join(flags)}` of {git_commit() or 'unknown code'}"
    return f"{where}; {most} at most; {seconds:.0f} s on {when}; {of}."


def in_a_process(part: str) -> str:
    """Measure a part in its own process, so that a fault only ends that part."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        command = [sys.executable, __file__, *sys.argv[1:], "--parts", part, "--lines", str(lines)]
        process = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
        try:
            process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            # Its child processes use the card, too.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"Not measured: it took more than {LIMIT_SECONDS} seconds."
        if lines.exists():
            return lines.read_text(encoding="utf-8")
        return f"Not measured: the process ended with exit code {process.returncode}."


if __name__ == "__main__":
    main()
