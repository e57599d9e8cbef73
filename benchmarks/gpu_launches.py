"""Counts what a step launches on a GPU: of models, of every loss, and of heads trained together.

No GPU is needed. Run it as

    python benchmarks/gpu_launches.py --card FOLDER --out docs/results/gpu-launches.md

where FOLDER holds a pretended card's ``build.sh`` and ``run.sh``: a CUDA runtime that counts
kernels and computes nothing. It is built anew (needs gcc and g++), or taken from ``--build``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from _machine import training_images

from trainables.common.errors import TrainingDivergedError
from trainables.losses import LOSSES, build_loss
from trainables.methods import build_method
from trainables.refinements import HeadsTogether, HeadTrainer, build_refinement
from trainables.stages.engine import Trainer
from trainables.stages.graphed import WARM_UP
from trainables.stages.protocols import Protocol

BATCH = 128
CLASSES = (10, 100, 1000)
MODELS = ("resnet50", "resnet18", "resnet8", "wrn-26-10", "densenet40", "convnet")
METHODS = ("ce", "mixup", "cutmix", "mit", "balcal", "mcdrop")
HEADS, FEATURES = 64, 512
SHORT, LONG = 2, 6
"""Steps of two epochs whose difference is taken: an epoch's own launches do not count."""

Counts = dict[str, int]

EXPLANATION = f"""\
Counted on a pretended card: the CUDA runtime's real calls, by a library that counts kernels and
computes nothing. It has no cuDNN, so that a convolution counts as one launch and one for each of
its gradients, and batch normalisation as PyTorch's own kernels, which are those of bfloat16.

- *launches* are kernels, *fills* the calls of memset beside them.
- *waits* are those of the host for the device, *pageable* are copies from memory that is not
  pinned, which wait too; there should be none of either within a step.

Batches of {BATCH}.
"""

RECORDED = """\
A step is recorded as a CUDA graph, once an epoch, and is then one launch; the others draw images
and bring the batch, and how it is mixed, to where the graph reads them. The pretended card records
nothing: what is launched beside a recorded step is counted, and the step taken for one launch.
"""


class Recording:
    """Stands for a recorded step: one launch."""

    def __init__(self) -> None:
        self.total = torch.ones((), device=torch.device("cuda", 0))

    def replay(self) -> None:
        """Launch once."""
        self.total.add_(1)


@contextlib.contextmanager
def recording(graph: Recording, **how: Any) -> Iterator[None]:
    """Have the step run as it is written, once an epoch."""
    yield


def counted(run: Callable[[], object]) -> Counts:
    """Return what a call launches."""
    with import_module("nullgpu").counted() as counts:
        run()
    return counts


def epoch(steps: int, model: str, parts: dict[str, dict[str, Any]], graph: bool = False) -> Counts:
    """Return what the second epoch of so many steps launches."""
    arrays, info = training_images(None, steps * BATCH)
    protocol = Protocol(epochs=2, batch_size=BATCH, lr=0.1, augmentation="crop-flip")
    device = torch.device("cuda", 0)
    method = build_method(parts)
    made = Trainer(model, method, arrays, info, protocol, 0, device, "bfloat16", graph)

    def train() -> None:
        # What comes back was never computed, and may be no number.
        with contextlib.suppress(TrainingDivergedError):
            made.train_epoch()

    with patch.multiple(torch.cuda, CUDAGraph=Recording, graph=recording):
        train()
        made.epoch = 1
        counts = counted(train)
    assert not made.remarks(), made.remarks()
    return counts


def step(model: str, parts: dict[str, dict[str, Any]], graph: bool = False) -> list[float]:
    """Return launches, fills, waits and pageable copies of a training step."""
    # Of an epoch that is recorded, the first steps run as they are written.
    short, long = (epoch(steps + WARM_UP * graph, model, parts, graph) for steps in (SHORT, LONG))
    names = ("launches", "memset", "syncs", "h2d_pageable")
    return [(long[name] - short[name]) / (LONG - SHORT) for name in names]


def loss_step(name: str, classes: int) -> Counts:
    """Return what a loss and its gradient launch."""
    device = torch.device("cuda", 0)
    loss = build_loss(name).to(device)
    loss.prepare(10 * BATCH, classes)
    loss.start_epoch(0)
    logits = torch.randn(BATCH, classes).to(device).requires_grad_()
    rows = torch.arange(BATCH, device=device)
    targets = torch.zeros(BATCH, dtype=torch.long).to(device)

    def run() -> None:
        torch.autograd.grad(loss(logits, targets, rows), logits)

    run()
    return counted(run)


def heads_epoch(steps: int, together: bool) -> Counts:
    """Return what an epoch of many MaC-Cal heads launches."""
    device = torch.device("cuda", 0)
    rows = steps * BATCH
    views, labels = [torch.zeros(rows, FEATURES).to(device)], torch.zeros(rows, dtype=torch.long)
    heads = [
        HeadTrainer(
            build_refinement("macal", epochs=2, gamma=0.9 + 0.001 * number),
            views,
            labels,
            num_classes=CLASSES[0],
            batch_size=BATCH,
            momentum=0.9,
            weight_decay=5e-4,
            seed=0,
            device=device,
        )
        for number in range(HEADS)
    ]
    if together:
        return counted(HeadsTogether(heads).train_epoch)
    return counted(lambda: [head.train_epoch() for head in heads])


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table; numbers stand right."""
    lines = ["| " + " | ".join(columns) + " |", "| --- |" + " ---: |" * (len(columns) - 1)]
    lines += [
        "| " + " | ".join(f"{cell:,g}" if cell != str(cell) else cell for cell in row) + " |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def steps_table(
    kind: str, cases: dict[str, tuple[str, dict[str, dict[str, Any]]]], graph: bool = False
) -> str:
    """Return the table of training steps."""
    rows = [[name, *step(*case, graph)] for name, case in cases.items()]
    return table([kind, "launches", "fills", "waits", "pageable"], rows)


def losses_table() -> str:
    """Return the table of all losses."""
    rows: list[list[Any]] = []
    for name in LOSSES.names():
        found = [loss_step(name, classes) for classes in CLASSES]
        waits = max(counts["syncs"] + counts["h2d_pageable"] for counts in found)
        rows.append([name, *(counts["launches"] for counts in found), waits])
    return table(["loss", *(f"K = {classes}" for classes in CLASSES), "waits"], rows)


def heads_table() -> str:
    """Return the table of heads."""
    rows: list[list[Any]] = []
    for name, together in (("one by one", False), ("together", True)):
        short, long = (heads_epoch(steps, together)["launches"] for steps in (SHORT, LONG))
        rows.append([name, (long - short) / (LONG - SHORT), long])
    return table([f"{HEADS} heads", "launches a step", f"an epoch of {LONG} steps"], rows)


def report() -> str:
    """Count everything; return the page."""
    # The pretended card has no cuDNN.
    torch.backends.cudnn.enabled = False
    models = {name: (name, {"ce": {}}) for name in MODELS}
    methods = {name: ("resnet8", {name: {}}) for name in METHODS}
    mixed = {f"resnet8 by {name}": methods[name] for name in ("mixup", "cutmix", "mit")}
    return "\n".join(
        [
            "# Launches a step on a GPU",
            "",
            EXPLANATION,
            f"Python {platform.python_version()}, PyTorch {torch.__version__}.",
            "",
            "## Training steps with cross-entropy, K = 10, bfloat16",
            "",
            steps_table("model", models),
            "## The same steps with `graph: true`",
            "",
            RECORDED,
            steps_table("model", {**models, **mixed}, graph=True),
            "## Training steps of `resnet8` by other methods",
            "",
            steps_table("method", methods),
            "## Losses and their gradients",
            "",
            losses_table(),
            f"## {HEADS} MaC-Cal heads on {FEATURES} features, K = {CLASSES[0]}",
            "",
            heads_table(),
        ]
    )


def on_the_card(tool: Path, build: Path) -> str:
    """Run this script again where torch sees the pretended card; return what it prints."""
    if not any(build.glob("*.so")):
        subprocess.run([tool / "build.sh", sys.executable, build], check=True, stdout=sys.stderr)
    own = Path(__file__).resolve()
    path = os.pathsep.join([str(own.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [tool / "run.sh", sys.executable, own],
        env={**os.environ, "NULLGPU": str(build), "PYTHONPATH": path},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def main() -> None:
    """Count, print the page and write it if asked to."""
    if "NULLGPU" in os.environ:
        sys.stdout.write(report())
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--card", type=Path, required=True, help="folder of the pretended card")
    parser.add_argument("--build", type=Path, help="where it is built; kept")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = on_the_card(options.card.resolve(), (options.build or Path(folder)).resolve())
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
