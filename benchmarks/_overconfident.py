"""Small networks that know their training set by heart, and their features.

They are trained by plain PyTorch, long enough and without augmentation, so that what a refinement
is given is what the networks of the papers give it: training features that are separated
completely, and test rows on which the network is too sure.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn

from trainables.losses import build_loss

WIDTH = 64
VALIDATION, TEST = 2000, 5000
CELL, ORIENTATIONS = 8, 9
WORDS = 2000


@dataclass(frozen=True)
class Rows:
    """Inputs (N, ...) and labels (N,) of the three parts of a data set."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Features:
    """What a network makes of its rows.

    Attributes:
        features: Part to features (N, D).
        logits: Part to the network's own logits (N, K).
        labels: Part to labels (N,).
    """

    features: dict[str, Tensor]
    logits: dict[str, Tensor]
    labels: dict[str, Tensor]

    @property
    def classes(self) -> int:
        """Return K."""
        return self.logits["test"].shape[1]


PARTS = ("train", "validation", "test")


@cache
def _cifar(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "cifar10.npz") as arrays:
        return {name: arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")}


def _images(folder: Path, classes: int, count: int, seed: int) -> Rows:
    """Return rows of CIFAR-10's first ``classes`` classes as float images (N, 3, 32, 32)."""
    arrays = _cifar(folder)
    allowed = np.flatnonzero(arrays["y_train"] < classes)
    drawn = np.random.default_rng(seed).permutation(allowed)[: count + VALIDATION]
    tested = np.flatnonzero(arrays["y_test"] < classes)[:TEST]

    def part(name: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(arrays[f"x_{name}"][rows]).permute(0, 3, 1, 2).float() / 255
        return pixels, torch.from_numpy(arrays[f"y_{name}"][rows]).long()

    return Rows(part("train", drawn[:count]), part("train", drawn[count:]), part("test", tested))


def histograms(images: Tensor) -> Tensor:
    """Return histograms of oriented gradients (Dalal & Triggs, 2005) of images (N, 3, S, S).

    Cells of 8 x 8 pixels with nine unsigned orientations, normalised in overlapping blocks of
    2 x 2 cells.
    """
    grey = images.mean(1, keepdim=True)
    across, down = torch.zeros_like(grey), torch.zeros_like(grey)
    across[..., 1:-1] = grey[..., 2:] - grey[..., :-2]
    down[..., 1:-1, :] = grey[..., 2:, :] - grey[..., :-2, :]
    strength = (across.square() + down.square()).sqrt()
    angle = torch.atan2(down, across).remainder(torch.pi) / torch.pi * ORIENTATIONS
    lower = angle.floor()
    share = angle - lower
    votes = [
        strength * ((lower % ORIENTATIONS == k) * (1 - share))
        + strength * (((lower + 1) % ORIENTATIONS == k) * share)
        for k in range(ORIENTATIONS)
    ]
    cells = nn.functional.avg_pool2d(torch.cat(votes, 1), CELL)
    blocks = cells.unfold(2, 2, 1).unfold(3, 2, 1)  # (N, 9, B, B, 2, 2)
    normed = blocks / (blocks.square().sum((1, 4, 5), keepdim=True).sqrt() + 1e-3)
    return normed.flatten(1)


def _hog(folder: Path, classes: int, count: int, seed: int) -> Rows:
    rows = _images(folder, classes, count, seed)
    parts = {name: getattr(rows, name) for name in PARTS}
    found = {name: (histograms(inputs), labels) for name, (inputs, labels) in parts.items()}
    mean, spread = found["train"][0].mean(0), found["train"][0].std(0)
    return Rows(**{name: ((x - mean) / spread, labels) for name, (x, labels) in found.items()})


@cache
def _articles(folder: Path, part: str) -> tuple[list[str], np.ndarray]:
    with lzma.open(folder / "20newsgroups" / f"{part}.jsonl.xz", "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    return [row["text"] for row in rows], np.array([row["label"] for row in rows])


def _news(folder: Path, count: int, seed: int) -> Rows:
    """Return tf-idf weights (N, 2000) of the words of the by-date 20 Newsgroups."""
    texts, labels = _articles(folder, "train")
    drawn = np.random.default_rng(seed).permutation(len(texts))[: count + VALIDATION]
    words = TfidfVectorizer(max_features=WORDS, sublinear_tf=True, stop_words="english")
    words.fit([texts[row] for row in drawn[:count]])

    def part(some: list[str], targets: np.ndarray) -> tuple[Tensor, Tensor]:
        weights = words.transform(some).toarray().astype(np.float32)
        return torch.from_numpy(weights) * WORDS**0.5, torch.from_numpy(targets).long()

    train, validation = (
        part([texts[row] for row in rows], labels[rows]) for rows in (drawn[:count], drawn[count:])
    )
    tested, targets = _articles(folder, "test")
    rows = np.random.default_rng(seed).permutation(len(tested))[:TEST]  # They lie class by class.
    return Rows(train, validation, part([tested[row] for row in rows], targets[rows]))


def _perceptron(inputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 4 * WIDTH, bias=False),
        nn.BatchNorm1d(4 * WIDTH),
        nn.ReLU(),
        nn.Linear(4 * WIDTH, WIDTH, bias=False),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(),
    )


def _convolutions(inputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after, stride in ((inputs, 24, 1), (24, 48, 2), (48, WIDTH, 2), (WIDTH, WIDTH, 2)):
        layers += [
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


@dataclass(frozen=True)
class Kind:
    """A network and its data.

    Attributes:
        title: What it is, for the page.
        rows: Folder, number of training rows and seed to the rows.
        extractor: Number of inputs or channels to the layers below the classifier.
        count: Training rows.
        epochs: Epochs.
        methods: Losses that it is trained with.
        seeds: How many seeds it is worth.
    """

    title: str
    rows: Callable[[Path, int, int], Rows]
    extractor: Callable[[int], nn.Module]
    count: int
    epochs: int
    methods: tuple[str, ...]
    seeds: int = 3


KINDS = {
    "hog-4": Kind(
        "MLP with batch norm on HOG features, 4 classes of CIFAR-10",
        lambda folder, count, seed: _hog(folder, 4, count, seed),
        _perceptron,
        3000,
        40,
        ("ce", "ls", "mbls", "fl"),
    ),
    "hog-10": Kind(
        "MLP with batch norm on HOG features, 10 classes of CIFAR-10",
        lambda folder, count, seed: _hog(folder, 10, count, seed),
        _perceptron,
        3000,
        40,
        ("ce", "mbls"),
    ),
    "news": Kind(
        "MLP with batch norm on tf-idf weights of 2,000 words, 20 Newsgroups",
        _news,
        _perceptron,
        3000,
        20,
        ("ce", "mbls"),
    ),
    "conv": Kind(
        "four convolutions with batch norm, 10 classes of CIFAR-10",
        lambda folder, count, seed: _images(folder, 10, count, seed),
        _convolutions,
        2000,
        60,
        ("ce",),
        seeds=2,
    ),
}


def train(kind: Kind, method: str, folder: Path, seed: int, count: int, epochs: int) -> Features:
    """Train a network and return its features; the same arguments give the same ones."""
    rows = kind.rows(folder, count, seed)
    parts = {name: getattr(rows, name) for name in PARTS}
    inputs, targets = rows.train
    classes = int(max(labels.max() for _, labels in parts.values())) + 1
    torch.manual_seed(seed)
    extractor, classifier = kind.extractor(inputs.shape[1]), nn.Linear(WIDTH, classes)
    network = nn.Sequential(extractor, classifier)
    loss = build_loss(method)
    sgd = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, epochs)
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs)).split(128):
            if len(batch) < 2:  # Batch norm has no variance of a single row.
                continue
            sgd.zero_grad()
            loss(network(inputs[batch]), targets[batch]).backward()
            sgd.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        found = {
            name: torch.cat([extractor(x) for x in each.split(500)])
            for name, (each, _) in parts.items()
        }
        logits = {name: classifier(each) for name, each in found.items()}
    return Features(found, logits, {name: labels for name, (_, labels) in parts.items()})
