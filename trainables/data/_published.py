"""Readers of data sets whose constants are published."""

import importlib
import os
import pickle
import shutil
import tarfile
import zipfile
import zlib
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError
from trainables.common.files import scratch_folder
from trainables.data._files import ListedReader
from trainables.data._images import Images
from trainables.data._inputs import DatasetInfo
from trainables.data._rows import RowArrays, Rows
from trainables.data._source import Reader, SourceStatus

# Of ImageNet's training images; torchvision's and timm's pretrained networks expect them. The
# released code of Mukhoti et al. (2020) and MbLS (2022) uses them for Tiny-ImageNet, MbLS for CUB.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Errors of libraries when a download fails or a file is of another kind.
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
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Checked:
    """A file and the MD5 that its owner states; None where there is none."""

    path: Path
    md5: str | None

    def fault(self) -> str:
        """Return the fault of the file, or nothing."""
        from torchvision.datasets.utils import check_integrity  # Importing it takes a second.

        if not self.path.is_file():
            return f"{self.path} is absent"
        if not check_integrity(self.path, self.md5):
            return f"{self.path} is damaged (wrong checksum)"
        return ""


def unpack(archive: Path, folder: str) -> None:
    """Unpack the folder in an archive beside it, or raise one of ``FAILURES``."""
    # Renamed when whole: what an interruption leaves must not pass for the folder.
    with scratch_folder(".unpacking-", archive.parent) as scratch:
        # Members of .zip files are kept inside the folder in any case.
        shutil.unpack_archive(archive, scratch, filter=None if archive.suffix == ".zip" else "data")
        os.replace(scratch / folder, archive.parent / folder)


def line_of(error: BaseException) -> str:
    """Return an error's kind and text in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class PublishedReader(Reader):
    """A data set that many papers use.

    Attributes:
        address: Where its files can be had by hand, for people.
    """

    inputs: Images
    split_rule = "official test set; validation is a stratified draw from the training set"
    citation = ""
    address = ""

    def info(self, classes: tuple[str, ...]) -> DatasetInfo:
        return DatasetInfo(self.name, classes, self.inputs, self.split_rule, self.citation)


class TorchvisionReader(PublishedReader):
    """A data set that torchvision downloads, unpacks and checks.

    Attributes:
        dataset: The name of its class in ``torchvision.datasets``.
    """

    downloads = True
    dataset = ""
    classes: tuple[str, ...]

    @property
    def published(self) -> Any:
        # Imported here because torchvision takes more than a second, of every command there is.
        return getattr(importlib.import_module("torchvision.datasets"), self.dataset)

    @abstractmethod
    def unpacked(self) -> list[Checked]:
        """Return the files that hold the images."""

    def archives(self) -> list[Checked]:
        """Return the files that are downloaded; the same ones if nothing is unpacked."""
        return self.unpacked()

    @abstractmethod
    def load(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return images (N, H, W) or (N, H, W, C), uint8, and labels (N,), by torchvision."""

    def read(self, download: bool) -> tuple[DatasetInfo, Rows, Rows | None]:
        status = self.check()
        if not status.present and not download:
            raise InputError(f"dataset {self.name!r}: {status.detail}; {status.remedy}")
        try:
            # With intact archives torchvision's download only unpacks.
            parts = [_arrays(*self.load(train)) for train in (True, False)]
        except FAILURES as error:
            reason = f"{line_of(error)}; {self._by_hand()}"
            raise InputError(f"dataset {self.name!r}: {reason}") from error
        return self.info(self.classes), parts[0], parts[1]

    def files(self) -> list[Path]:
        return [checked.path for checked in self.unpacked()]

    def test_paths(self) -> list[Path]:
        """Return the files that hold test images, and the archives, which do too."""
        named = [checked.path for checked in (*self.unpacked(), *self.archives())]
        return [path for path in named if self.holds_test(path)]

    def holds_test(self, path: Path) -> bool:
        """Return True if a file holds test images."""
        return "train" not in path.name

    def check(self) -> SourceStatus:
        """Check every file's checksum; intact archives are as good as unpacked files."""
        fault = _first_fault(self.unpacked())
        if fault and _first_fault(self.archives()):
            return SourceStatus(False, fault, f"allow the download, or {self._by_hand()}")
        return SourceStatus(True, f"intact at {self.root}")

    def _by_hand(self) -> str:
        names = ", ".join(str(checked.path) for checked in self.archives())
        return f"put the files from {self.address} there by hand: {names}"


class OfficialReader(PublishedReader, ListedReader):
    """A data set in its official folder, whose licence asks people to fetch it themselves.

    Attributes:
        folder: The folder below the root that holds it.
        test_folder: The folder below that which holds the test images, perhaps with others.
        archive: The file in the root that it is unpacked from; empty where people unpack it.
        md5: The archive's checksum.
    """

    folder = ""
    test_folder = "val"
    archive = ""
    md5 = ""

    @property
    def path(self) -> Path:
        return self.root / self.folder

    def instruction(self) -> str:
        return f"get {self.archive} from {self.address} and put it into {self.root}"

    def read(self, download: bool) -> tuple[DatasetInfo, Rows, Rows | None]:
        """Return both official parts as lists of files, after unpacking the archive if need be."""
        if self._packed():
            status, archive = self.check(), self.root / self.archive
            if not status.present:
                raise InputError(f"dataset {self.name!r}: {status.detail}; {status.remedy}")
            try:
                unpack(archive, self.folder)
            except FAILURES as error:
                reason = f"{archive} cannot be unpacked: {error}"
                raise InputError(f"dataset {self.name!r}: {reason}") from error
        self._require()
        classes, train, test = self.listing()
        files = self.image_files
        return self.info(classes), files(train), None if test is None else files(test)

    def test_paths(self) -> list[Path]:
        packed = [self.root / self.archive] if self.archive else []
        return [self.path / self.test_folder, *packed]

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        return super().labels() if self.path.is_dir() else None

    def awaited(self) -> bool:
        return not self.path.is_dir() and not self._packed()

    def check(self) -> SourceStatus:
        """List the images, without opening them; an intact archive is as good as its folder."""
        if self.awaited():
            return SourceStatus(False, f"{self.path} does not exist", self.instruction())
        if not self._packed():
            return super().check()
        packed = Checked(self.root / self.archive, self.md5)
        fault = packed.fault()
        return SourceStatus(not fault, fault or f"{packed.path} is intact", self.instruction())

    def _packed(self) -> bool:
        return not self.path.is_dir() and (self.root / self.archive).is_file()

    def _require(self) -> None:
        if not self.path.is_dir():
            raise InputError(f"dataset {self.name!r} does not exist; {self.instruction()}")


def _first_fault(files: list[Checked]) -> str:
    return next(filter(None, (checked.fault() for checked in files)), "")


def _arrays(images: np.ndarray, labels: np.ndarray) -> RowArrays:
    images = images[..., None] if images.ndim == 3 else images
    return RowArrays(np.ascontiguousarray(images), np.asarray(labels, np.int64))
