"""Counts the launches of a training step on the pretended GPU, for `gpu_scenarios.py`."""

import contextlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _machine import training_images
from torch import Tensor

from trainables.calibrators import build_calibrator
from trainables.common.errors import TrainingDivergedError
from trainables.data import DatasetInfo, MaskedImages, RowArrays, Texts, move
from trainables.data._masked import HELD_PIXELS
from trainables.losses import build_loss
from trainables.methods import build_method
from trainables.stages.engine import EVALUATION_BATCH, Trainer, place, predict, seeded_network
from trainables.stages.graphed import WARM_UP
from trainables.stages.pixels import calibrated, outputs_of, score_pixels
from trainables.stages.protocols import Protocol

BATCH = 128
SIDE, TEXT_CLASSES, PIXEL_CLASSES = 32, 10, 21
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
PIXELS = (8, 8)  # The size of the images whose pixels have losses.
SHORT, LONG = 2, 6
"""Steps of two epochs whose difference is taken: an epoch's own launches do not count."""

Counts = dict[str, int]
ANSWERS = torch.library.Library("aten", "IMPL")

EVALUATED = f"""\
A batch of {EVALUATION_BATCH:,} images, and one of {HELD_PIXELS:,} pixels. Logits of images stay
on the device until all are there. Metrics of pixels are added up batch by batch, which waits for
the sizes of the images, the number of labelled pixels and checks of logits and labels. The
pretended card gets these numbers; it cannot count them.
"""


class Recording:
    """Stands for a recorded step: one launch."""

    def __init__(self) -> None:
        self.total = torch.ones((), device=torch.device("cuda", 0))

    def replay(self) -> None:
        self.total.add_(1)


@contextlib.contextmanager
def recording(graph: Recording, **how: Any) -> Iterator[None]:
    yield


def counted(run: Callable[[], object]) -> Counts:
    with import_module("nullgpu").counted() as counts:
        run()
    return counts


def masked_images(count: int) -> tuple[RowArrays, DatasetInfo]:
    """Return random images with masks of 21 classes, of the same size."""
    generator = np.random.default_rng(0)
    values = generator.integers(0, PIXEL_CLASSES, (count, SIDE, SIDE, 4), dtype=np.uint8)
    inputs = MaskedImages((SIDE, SIDE), (0.5,) * 3, (0.25,) * 3)
    info = DatasetInfo("random", tuple(map(str, range(PIXEL_CLASSES))), inputs, "", "")
    return RowArrays(values, np.zeros(count, np.int64)), info


def random_texts(count: int, length: int, words: int) -> tuple[RowArrays, DatasetInfo]:
    """Return texts without padding, the most expensive ones, and their facts."""
    generator = np.random.default_rng(0)
    values = generator.integers(1, words + 1, (count, length), dtype=np.int32)
    labels = np.arange(count, dtype=np.int64) % TEXT_CLASSES
    inputs = Texts(words, length, tuple(map(str, range(words))))
    classes = tuple(map(str, range(TEXT_CLASSES)))
    return RowArrays(values, labels), DatasetInfo("random", classes, inputs, "", "")


def rows_for(model: str, count: int) -> tuple[RowArrays, DatasetInfo]:
    """Return random rows of the kind that a model takes."""
    if model.startswith("deeplabv3"):
        return masked_images(count)
    if model == "gpool-cnn":
        return random_texts(count, 100, 1000)
    return training_images(None, count)


def epoch(steps: int, model: str, parts: dict[str, dict[str, Any]], graph: bool = False) -> Counts:
    """Return the launches of the second epoch of so many steps."""
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
    # The first steps of a recorded epoch run as they are written.
    short, long = (epoch(steps + WARM_UP * graph, model, parts, graph) for steps in (SHORT, LONG))
    return each(short, long)


def each(short: Counts, long: Counts) -> list[float]:
    names = ("launches", "memset", "syncs", "h2d_pageable")
    return [(long[name] - short[name]) / (LONG - SHORT) for name in names]


def loss_step(name: str, classes: int, *pixels: int) -> Counts:
    """Return the launches of a loss and its gradient; ``pixels`` is the size of images."""
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
    """Return the launches of predictions of so many batches."""
    device = torch.device("cuda", 0)
    arrays, info = training_images(None, batches * EVALUATION_BATCH)
    network = place(seeded_network("resnet50", info, 0), device, "bfloat16")
    batcher = info.inputs.batcher(arrays.values, device)
    return counted(lambda: predict(network, batcher))


def pixels_evaluated(batches: int, scaled: bool = False) -> Counts:
    """Return the launches of metrics of so many batches of pixels, perhaps with a temperature."""
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
