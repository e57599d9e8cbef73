"""A data set as its owner publishes it, and the form that every reader takes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainables.data._arrays import LabelledImages
from trainables.data._info import DatasetInfo
from trainables.errors import InputError
from trainables.paths import local_path


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, unsplit.

    Attributes:
        info: Its constants.
        train: The official training images, or all images where there is no official test set.
        test: The official test images, or None.
        fingerprint: SHA-256 (hex) of the content of all images and labels.

    Raises:
        ValueError: If images or labels contradict ``info``.
    """

    info: DatasetInfo
    train: LabelledImages
    test: LabelledImages | None
    fingerprint: str

    def __post_init__(self) -> None:
        """Check the arrays against the constants."""
        expected = (*self.info.size, self.info.channels)
        for part in (self.train, self.test):
            if part is None:
                continue
            if part.shape != expected:
                raise ValueError(f"images are {part.shape}, expected {expected}")
            if part.labels.max() >= self.info.num_classes:
                raise ValueError(
                    f"label {part.labels.max()} is outside [0, {self.info.num_classes - 1}]"
                )


@dataclass(frozen=True)
class SourceStatus:
    """Whether a data set can be read now, for ``calsweep doctor``.

    Attributes:
        present: Whether its files are there and intact.
        detail: What was found, in one line.
        remedy: What to do about it, in one line; empty if there is nothing to do.
    """

    present: bool
    detail: str
    remedy: str = ""


class Reader(ABC):
    """Reads one data set; a subclass is one registry entry.

    Args:
        name: The full name, such as ``npz:my.npz``.
        argument: What follows the colon; empty if nothing does.
        root: The folder that downloaded data sets live in.

    Attributes:
        placeholder: What has to follow a colon after the name, such as ``PATH``; empty if nothing.
        takes_argument: Whether anything may follow a colon.
        downloads: Whether ``read`` can fetch what is absent.
    """

    placeholder = ""
    takes_argument = False
    downloads = False

    def __init__(self, name: str, argument: str, root: Path) -> None:
        if argument and not self.takes_argument:
            raise InputError(f"dataset {name!r}: nothing may follow {name.partition(':')[0]!r}")
        if self.placeholder and not argument:
            raise InputError(f"dataset {name!r} has to be written {name}:{self.placeholder}")
        self.name = name
        self.argument = argument
        self.root = local_path(root, "data root")

    @abstractmethod
    def read(self, download: bool) -> tuple[DatasetInfo, LabelledImages, LabelledImages | None]:
        """Return constants, training images and test images (None if there is no official set).

        Raises:
            InputError: If a file is absent (and cannot be downloaded) or damaged.
        """

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return labels as ``read`` would, or None where only images or a download tell them.

        What ``read`` refuses without looking at images is refused here too, and as it does.

        Raises:
            InputError: See ``read``.
        """
        return None

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files that ``read`` reads, whether or not they exist."""

    @abstractmethod
    def test_paths(self) -> list[Path]:
        """Return the files and folders from which test images could be read."""

    @abstractmethod
    def check(self) -> SourceStatus:
        """Tell whether ``read`` would work without a download."""

    def full_name(self) -> str:
        """Return a name that means the same from every working directory."""
        return self.name

    def signature(self) -> str:
        """Return a hash of names, sizes and times of the files; it changes when they do."""
        digest = hashlib.sha256()
        for path in self.files():
            found = path.stat() if path.is_file() else None
            digest.update(f"{path}|{found and (found.st_size, found.st_mtime_ns)}\n".encode())
        return digest.hexdigest()
