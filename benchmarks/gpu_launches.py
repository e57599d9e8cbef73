"""Counts what steps launch on a GPU: of models, losses, heads together; and what evaluations do.

No GPU is needed. Run it as

    python benchmarks/gpu_launches.py --card FOLDER --out docs/results/gpu-launches.md

where FOLDER holds a pretended card's ``build.sh`` and ``run.sh``: a CUDA runtime that counts
kernels and computes nothing. It is built anew (needs gcc and g++), or taken from ``--build``.
"""

from __future__ import annotations

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
from _machine import PIXEL_CLASSES, SIDE, macal_heads, masked_images, training_images
from _page import options, publish
from _page import table as markdown
from torch import Tensor
from training_texts import random_texts

from trainables.calibrators import build_calibrator
from trainables.common.errors import TrainingDivergedError
from trainables.data import DatasetInfo, RowArrays, move
from trainables.data._masked import HELD_PIXELS
from trainables.losses import LOSSES, build_loss
from trainables.methods import build_method
from trainables.refinements import HeadsTogether
from trainables.stages.engine import EVALUATION_BATCH, Trainer, place, predict, seeded_network
from trainables.stages.graphed import WARM_UP
from trainables.stages.pixels import calibrated, outputs_of, score_pixels
from trainables.stages.protocols import Protocol

BATCH = 128
CLASSES = (10, 100, 1000)
MODELS = (
    "resnet50",
    "resnet18",
    "resnet8",
    "wrn-26-10",
    "densenet40",
    "convnet",
    "resnet110-cifar",
    "deeplabv3-small",
    "deeplabv3-resnet50",
    "gpool-cnn",
)
SKIPPING = "resnet110-sd"
METHODS = ("ce", "mixup", "cutmix", "mit", "balcal", "mcdrop")
HEADS, FEATURES = 64, 512
PIXELS = (8, 8)  # Of the images whose pixels losses are of.
SHORT, LONG = 2, 6
"""Steps of two epochs whose difference is taken: an epoch's own launches do not count."""

Counts = dict[str, int]
ANSWERS = torch.library.Library("aten", "IMPL")

EXPLANATION = f"""\
Counted on a pretended card: the CUDA runtime's real calls, by a library that counts kernels and
computes nothing. It has no cuDNN, so that a convolution counts as one launch and one for each of
its gradients, and batch normalisation as PyTorch's own kernels, which are those of bfloat16.

- *launches* are kernels, *fills* the calls of memset beside them.
- *waits* are those of the host for the device, *pageable* are copies from memory that is not
  pinned, which wait too; there should be none of either within a step.

Batches of {BATCH}: for `deeplabv3-*` of images with masks of {PIXEL_CLASSES} classes, for
`gpool-cnn` of texts.
"""

RECORDED = f"""\
A step is recorded as a CUDA graph, once an epoch, and is then one launch; the others draw images
and bring the batch, and how it is mixed, to where the graph reads them. The pretended card records
nothing: launches beside a recorded step are counted, and the step counts as one launch.

`{SKIPPING}`, above the mean of {LONG - SHORT} steps, is not recorded: the host draws which blocks
a step computes. A graph would compute them all, as that of `resnet110-cifar` does, a third more
than the three quarters that are left on average, and could only multiply by nothing what is
skipped: momentum and weight decay would move weights that they leave alone now, and batch
normalisation would count.
"""
EVALUATED = f"""\
A batch of {EVALUATION_BATCH:,} images, and one of {HELD_PIXELS:,} pixels. Logits of images stay
on the device until all are there. Metrics of pixels are added up batch by batch, which waits for
the sizes of the images, the number of labelled pixels and checks of logits and labels. What the
pretended card would have to count for that, it is told.
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


def rows_for(model: str, count: int) -> tuple[RowArrays, DatasetInfo]:
    """Return random rows of the kind that a model takes."""
    if model.startswith("deeplabv3"):
        return masked_images(count)
    if model == "gpool-cnn":
        return random_texts(count, 100, 1000)
    return training_images(None, count)


def epoch(steps: int, model: str, parts: dict[str, dict[str, Any]], graph: bool = False) -> Counts:
    """Return what the second epoch of so many steps launches."""
    arrays, info = rows_for(model, steps * BATCH)
    protocol = Protocol(epochs=2, batch_size=BATCH, lr=0.1)
    device = torch.device("cuda", 0)
    method = build_method(parts)
    made = Trainer(model, method, arrays, info, protocol, 0, device, "bfloat16", graph)

    def train() -> None:
        # The result was never computed, and may be NaN.
        with contextlib.suppress(TrainingDivergedError):
            made.train_epoch()

    with (
        patch.multiple(torch.cuda, CUDAGraph=Recording, graph=recording),
        patch.object(method, "end_epoch", return_value={}),  # It may read what it has counted.
    ):
        train()
        made.epoch = 1
        counts = counted(train)
    assert not made.remarks(), made.remarks()
    return counts


def step(model: str, parts: dict[str, dict[str, Any]], graph: bool = False) -> list[float]:
    """Return launches, fills, waits and pageable copies of a training step."""
    # Of an epoch that is recorded, the first steps run as they are written.
    short, long = (epoch(steps + WARM_UP * graph, model, parts, graph) for steps in (SHORT, LONG))
    return each(short, long)


def each(short: Counts, long: Counts) -> list[float]:
    """Return launches, fills, waits and pageable copies of each of the steps or batches."""
    names = ("launches", "memset", "syncs", "h2d_pageable")
    return [(long[name] - short[name]) / (LONG - SHORT) for name in names]


def loss_step(name: str, classes: int, *pixels: int) -> Counts:
    """Return what a loss and its gradient launch; of images of so many ``pixels`` if given."""
    device = torch.device("cuda", 0)
    loss = build_loss(name).to(device)
    loss.prepare(10 * BATCH, classes)
    loss.start_epoch(0)
    logits = torch.randn(BATCH, classes, *pixels).to(device).requires_grad_()
    rows = torch.arange(BATCH, device=device)
    targets = torch.zeros(BATCH, *pixels, dtype=torch.long).to(device)

    def run() -> None:
        torch.autograd.grad(loss(logits, targets, rows), logits)

    run()
    return counted(run)


def answer() -> None:
    """Answer in the pretended card's place, which counts nothing and compares nothing.

    Values are finite, labels in their range, and images as large as they are stored, all labelled.
    What would wait for the device does.
    """

    def constant(value: bool, values: Tensor, *shape: int) -> Tensor:
        torch.ones((), device=values.device)  # The launch.
        return move(torch.full(shape, value), values.device)

    def places(values: Tensor) -> Tensor:
        torch.cuda.synchronize(values.device)
        return move(torch.ones(values.shape).nonzero(), values.device)

    ANSWERS.impl("any", lambda values: constant(False, values), "CUDA")
    ANSWERS.impl("all", lambda values: constant(True, values), "CUDA")
    ANSWERS.impl("all.dim", lambda values, dim: constant(True, values, len(values)), "CUDA")
    ANSWERS.impl("nonzero", places, "CUDA")
    patch(
        "trainables.data._masked.image_sizes",
        lambda masks: move(torch.tensor([masks.shape[1:]] * len(masks)), masks.device),
    ).start()


def images_evaluated(batches: int) -> Counts:
    """Return what predictions of so many batches launch."""
    device = torch.device("cuda", 0)
    arrays, info = training_images(None, batches * EVALUATION_BATCH)
    network = place(seeded_network("resnet50", info, 0), device, "bfloat16")
    batcher = info.inputs.batcher(arrays.values, device)
    return counted(lambda: predict(network, batcher))


def pixels_evaluated(batches: int, scaled: bool = False) -> Counts:
    """Return what the metrics of so many batches of pixels launch, perhaps with a temperature."""
    device = torch.device("cuda", 0)
    rows, info = masked_images(batches * HELD_PIXELS // SIDE**2)
    network = place(seeded_network("deeplabv3-resnet50", info, 0), device, "bfloat16")
    outputs, batcher = outputs_of(network), info.inputs.batcher(rows.values, device)
    if scaled:
        labels = torch.arange(500) % PIXEL_CLASSES
        scaling = build_calibrator("ts").fit(torch.randn(500, PIXEL_CLASSES), labels)
        outputs = calibrated(outputs, scaling)
    pixels = info.inputs.pixels(rows)
    return counted(lambda: score_pixels(outputs, batcher, pixels, PIXEL_CLASSES))


def evaluations_table() -> str:
    """Return the table of evaluations."""
    runs: dict[str, Callable[[int], Counts]] = {
        "resnet50": images_evaluated,
        "deeplabv3-resnet50": pixels_evaluated,
        "deeplabv3-resnet50, ts": lambda batches: pixels_evaluated(batches, scaled=True),
    }
    rows = [[name, *each(run(SHORT), run(LONG))] for name, run in runs.items()]
    return table(["predictions", "launches", "fills", "waits", "pageable"], rows)


def heads_epoch(steps: int, together: bool) -> Counts:
    """Return what an epoch of many MaC-Cal heads launches."""
    device = torch.device("cuda", 0)
    rows = steps * BATCH
    views, labels = [torch.zeros(rows, FEATURES).to(device)], torch.zeros(rows, dtype=torch.long)
    heads = macal_heads(HEADS, views, labels, CLASSES[0], device)
    if together:
        return counted(HeadsTogether(heads).train_epoch)
    return counted(lambda: [head.train_epoch() for head in heads])


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table; numbers stand right."""
    cells = ([f"{cell:,g}" if cell != str(cell) else cell for cell in row] for row in rows)
    return "\n".join(markdown(columns, cells)) + "\n"


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
        found.append(loss_step(name, PIXEL_CLASSES, *PIXELS))
        waits = max(counts["syncs"] + counts["h2d_pageable"] for counts in found)
        rows.append([name, *(counts["launches"] for counts in found), waits])
    columns = [*(f"K = {classes}" for classes in CLASSES), f"pixels, K = {PIXEL_CLASSES}"]
    return table(["loss", *columns, "waits"], rows)


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
    answer()
    models = {name: (name, {"ce": {}}) for name in MODELS}
    methods = {name: ("resnet8", {name: {}}) for name in METHODS}
    others = {f"resnet8 by {name}": methods[name] for name in METHODS if name != "ce"}
    skipping = {SKIPPING: (SKIPPING, {"ce": {}})}
    return "\n".join(
        [
            "# Launches a step on a GPU",
            "",
            EXPLANATION,
            f"Python {platform.python_version()}, PyTorch {torch.__version__}.",
            "",
            "## Training steps with cross-entropy, K = 10, bfloat16",
            "",
            steps_table("model", {**models, **skipping}),
            "## The same steps with `graph: true`",
            "",
            RECORDED,
            steps_table("model", {**models, **others}, graph=True),
            "## Training steps of `resnet8` by other methods",
            "",
            steps_table("method", methods),
            "## Losses and their gradients",
            "",
            losses_table(),
            "## Evaluations",
            "",
            EVALUATED,
            evaluations_table(),
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
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--card", type=Path, required=True, help="folder of the pretended card")
    parser.add_argument("--build", type=Path, help="where it is built; kept")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = on_the_card(wanted.card.resolve(), (wanted.build or Path(folder)).resolve())
    publish(text, wanted.out)


if __name__ == "__main__":
    main()
