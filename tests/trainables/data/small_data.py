"""A few made-up images, and what is said of data that are refused."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trainables.common.errors import InputError

ROWS = 20  # Test images of an archive.


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments, **named)
    return str(caught.value)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def make_images(count: int, size: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (count, size, size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def make_labels(count: int, classes: int = 10) -> np.ndarray:
    return np.arange(count, dtype=np.int64) % classes


def write_npz(
    path: Path, size: int = 32, channels: int = 3, classes: int = 10, seed: int = 0
) -> Path:
    arrays = {"y_train": make_labels(60, classes), "y_test": make_labels(ROWS, classes)}
    arrays["x_train"] = make_images(60, size, channels, seed)
    arrays["x_test"] = make_images(ROWS, size, channels, seed + 1)
    np.savez(path, **arrays)
    return path
