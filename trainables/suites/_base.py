"""The form that every suite takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from trainables.data import DatasetInfo, PreparedData
from trainables.errors import InputError
from trainables.paths import local_path

if TYPE_CHECKING:
    from trainables.suites._data import SuiteData

Outputs = Callable[[np.ndarray], Tensor]
"""Log-probabilities (N, K), float32 on the CPU, of images (N, H, W, C), uint8."""


class Part(NamedTuple):
    """Images that a suite stores as one file.

    Attributes:
        name: The file's stem.
        images: Number of images.
        blocks: The images, uint8 (M, H, W, C), a block at a time.
    """

    name: str
    images: int
    blocks: Iterable[np.ndarray]


class Suite(ABC):
    """Further test data of a task, and what is measured on them; a subclass is a registry entry.

    Args:
        name: The full name, such as ``ood-npz:my.npz``.
        argument: What follows the entry's name; empty if nothing does.
        root: The folder that downloaded data live in.

    Attributes:
        pool: Metrics of a task's suites of one pool are averaged under this name.
    """

    pool = ""

    def __init__(self, name: str, argument: str, root: Path) -> None:
        self.name = name
        self.argument = argument
        self.root = local_path(root, "data root")

    @classmethod
    def names(cls, entry: str) -> list[str]:
        """Return what sweep files may write for the registry entry ``entry``."""
        return [entry]

    @classmethod
    def accepts(cls, argument: str) -> bool:
        """Tell whether ``argument`` may follow the entry's name and a hyphen."""
        return not argument

    @property
    def label(self) -> str:
        """Return what metrics begin with: a name that every tracking server accepts."""
        return self.name

    def full_name(self) -> str:
        """Return a name that means the same from every working directory."""
        return self.name

    @abstractmethod
    def check(self, info: DatasetInfo) -> None:
        """Make sure that the suite fits a task's data.

        Raises:
            InputError: If it does not; the text says why.
        """

    def missing_download(self) -> str:
        """Return what would have to be downloaded first, in one line; empty if nothing.

        Raises:
            InputError: If the source is absent and cannot be downloaded, or is wrong.
        """
        return ""

    @abstractmethod
    def signature(self) -> str:
        """Return a text that changes when the suite's source changes."""

    @abstractmethod
    def test_paths(self) -> list[Path]:
        """Return the files and folders of the source, which search trials must not open."""

    @abstractmethod
    def labels(self, prepared: PreparedData, download: bool) -> np.ndarray:
        """Return the labels (N,) that the suite's rows have, int64.

        Raises:
            InputError: If the source is absent (and cannot be downloaded) or damaged.
        """

    @abstractmethod
    def parts(self, prepared: PreparedData, download: bool) -> Iterator[Part]:
        """Yield what is to be stored, of the shape of the task's images.

        Raises:
            InputError: If the source is absent (and cannot be downloaded) or damaged.
        """

    @abstractmethod
    def judge(
        self, data: SuiteData, outputs: Outputs, clean: Tensor
    ) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Measure one configuration.

        Args:
            data: The suite as stored.
            outputs: The configuration.
            clean: Its log-probabilities (M, K) of the clean test rows.

        Returns:
            Metrics, fractions, and the tensors from which they can be computed again.
        """

    def refuse(self, reason: str) -> InputError:
        """Return the error that says why the suite cannot be used."""
        return InputError(f"suite {self.name!r}: {reason}")
