"""Reference cases and synthetic logits for the calibrators."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from trainables.contracts import draw_rows

FITTED_MNIST_ROWS = 5000


@dataclass(frozen=True)
class Split:
    fit_logits: np.ndarray
    fit_labels: np.ndarray
    test_logits: np.ndarray
    test_labels: np.ndarray


class Goldens:
    """The reference cases of one file, and the data sets they were computed on."""

    def __init__(self, folder: Path) -> None:
        self._index = json.loads((folder / "index.json").read_text())["files"]
        self.arrays = np.load(folder / "posthoc.npz")
        self.sctl_arrays = np.load(folder / "posthoc_sctl.npz")
        self._mnist = np.load(folder / "real_logits_mnist.npz")

    def cases(self, file: str, **wanted: str) -> list[dict]:
        cases = self._index[file]
        return [c for c in cases if all(c.get(k) == v for k, v in wanted.items())]

    def data(self, name: str) -> Split:
        names = ("fit_logits", "fit_targets", "test_logits", "test_targets")
        if name != "mnist":
            return Split(*(self.arrays[f"{name}/{key}"] for key in names))
        logits, labels, test_logits, test_labels = (self._mnist[key] for key in names)
        rows = slice(FITTED_MNIST_ROWS)
        return Split(logits[rows], labels[rows], test_logits, test_labels)


@pytest.fixture(scope="session")
def goldens(shared: Path) -> Goldens:
    return Goldens(shared / "goldens")


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return draw_rows()
