"""Random images for suites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from trainables.data import PreparedData

ROWS = 20

MakeTask = Callable[..., PreparedData]


def make_images(count: int, size: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (count, size, size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_npz(
    path: Path, size: int = 32, channels: int = 3, classes: int = 10, seed: int = 0
) -> Path:
    labels = np.arange(60) % classes
    np.savez(
        path,
        x_train=make_images(60, size, channels, seed),
        y_train=labels,
        x_test=make_images(ROWS, size, channels, seed + 1),
        y_test=np.arange(ROWS) % classes,
    )
    return path
