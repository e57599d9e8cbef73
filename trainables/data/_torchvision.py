"""What the readers of torchvision's data sets share: download, checksums and clear errors."""

from __future__ import annotations

import pickle
import tarfile
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torchvision.datasets.utils import check_integrity

from trainables.data._arrays import ImageArrays, LabelledImages
from trainables.data._info import DatasetInfo
from trainables.data._source import Reader, SourceStatus
from trainables.errors import InputError

# What torchvision lets through when a download fails or a file is not what it should be.
FAILURES = (
    RuntimeError,
    OSError,
    ValueError,
    EOFError,
    AssertionError,
    KeyError,
    IndexError,
    TypeError,
    pickle.UnpicklingError,
    tarfile.TarError,
)


@dataclass(frozen=True)
class Checked:
    """A file and the MD5 that torchvision expects of it; None where it expects none."""

    path: Path
    md5: str | None

    def fault(self) -> str:
        """Return what is wrong with the file, or nothing."""
        if not self.path.is_file():
            return f"{self.path} is absent"
        if not check_integrity(self.path, self.md5):
            return f"{self.path} is damaged (wrong checksum)"
        return ""


class TorchvisionReader(Reader):
    """A data set that torchvision downloads, unpacks and checks.

    Attributes:
        address: Where its files can be had by hand, for people.
    """

    address = ""
    downloads = True

    @abstractmethod
    def info(self) -> DatasetInfo:
        """Return the constants."""

    @abstractmethod
    def unpacked(self) -> list[Checked]:
        """Return the files that hold the images."""

    @abstractmethod
    def archives(self) -> list[Checked]:
        """Return the files that are downloaded; the same ones if nothing is unpacked."""

    @abstractmethod
    def load(self, train: bool, download: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return images (N, H, W) or (N, H, W, C), uint8, and labels (N,), by torchvision."""

    def read(self, download: bool) -> tuple[DatasetInfo, LabelledImages, LabelledImages | None]:
        """Return both official parts."""
        status = self.check()
        if not status.present and not download:
            raise InputError(f"dataset {self.name!r}: {status.detail}; {status.remedy}")
        try:
            # With intact archives torchvision's download only unpacks.
            parts = [_arrays(*self.load(train, download=True)) for train in (True, False)]
        except FAILURES as error:
            raise InputError(f"dataset {self.name!r}: {_line(error)}; {self._by_hand()}") from error
        return self.info(), parts[0], parts[1]

    def files(self) -> list[Path]:
        """Return the files that hold the images."""
        return [checked.path for checked in self.unpacked()]

    def test_paths(self) -> list[Path]:
        """Return the files that hold test images, and the archives, which do too."""
        named = [checked.path for checked in (*self.unpacked(), *self.archives())]
        return [path for path in named if self.holds_test(path)]

    def holds_test(self, path: Path) -> bool:
        """Tell whether a file holds test images."""
        return "train" not in path.name

    def check(self) -> SourceStatus:
        """Check every file's checksum; intact archives are as good as unpacked files."""
        fault = _first_fault(self.unpacked())
        if fault and _first_fault(self.archives()):
            remedy = f"allow the download, or {self._by_hand()}"
            return SourceStatus(False, fault, remedy)
        return SourceStatus(True, f"intact at {self.root}")

    def _by_hand(self) -> str:
        names = ", ".join(str(checked.path) for checked in self.archives())
        return f"put the files from {self.address} there by hand: {names}"


def _first_fault(files: list[Checked]) -> str:
    return next((fault for fault in (checked.fault() for checked in files) if fault), "")


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _arrays(images: np.ndarray, labels: np.ndarray) -> ImageArrays:
    images = images[..., None] if images.ndim == 3 else images
    return ImageArrays(np.ascontiguousarray(images), np.asarray(labels, np.int64))
