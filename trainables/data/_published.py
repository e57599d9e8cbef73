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

# Statistics of ImageNet's training images, as torchvision's and timm's pretrained networks expect.
# The released code of Mukhoti et al. (2020) and MbLS (2022) uses them for Tiny-ImageNet, and MbLS
# for CUB.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Errors of libraries if a download fails or a file has another format.
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
    """A file and the MD5 checksum that its owner publishes; None if no checksum is published."""

    path: Path
    md5: str | None

    def fault(self) -> str:
        """Return the fault of the file, or ""."""
        from torchvision.datasets.utils import check_integrity  # Importing it takes a second.

        if not self.path.is_file():
            return f"{self.path} is missing"
        if not check_integrity(self.path, self.md5):
            return f"{self.path} is damaged (wrong checksum)"
        return ""


def unpack(archive: Path, folder: str) -> None:
    """Unpack an archive's folder next to the archive, or raise one of ``FAILURES``."""
    # Renamed when complete, so that an interruption leaves no incomplete folder.
    with scratch_folder(".unpacking-", archive.parent) as scratch:
        # .zip files need no filter: their members always stay inside the folder.
        shutil.unpack_archive(archive, scratch, filter=None if archive.suffix == ".zip" else "data")
        os.replace(scratch / folder, archive.parent / folder)


def line_of(error: BaseException) -> str:
    """Return an error's type and text in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class PublishedReader(Reader):
    """A data set that many papers use.

    Attributes:
        address: Web page from which users can fetch its files.
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
        dataset: Name of the class in ``torchvision.datasets``.
    """

    downloads = True
    dataset = ""
    classes: tuple[str, ...]

    @property
    def published(self) -> Any:
        # Imported here, because importing torchvision takes more than a second.
        return getattr(importlib.import_module("torchvision.datasets"), self.dataset)

    @abstractmethod
    def unpacked(self) -> list[Checked]:
        """Return the unpacked files of images."""

    def archives(self) -> list[Checked]:
        """Return the downloaded files: ``unpacked()``, unless the downloads are archives."""
        return self.unpacked()

    @abstractmethod
    def load(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return torchvision's images (N, H, W) or (N, H, W, C), uint8, and labels (N,)."""

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
        """Return the files and archives that have test images."""
        named = [checked.path for checked in (*self.unpacked(), *self.archives())]
        return [path for path in named if self.holds_test(path)]

    def holds_test(self, path: Path) -> bool:
        """Return True if a file has test images; by default, if its name has no ``train``."""
        return "train" not in path.name

    def check(self) -> SourceStatus:
        """Check the unpacked files or, if one is missing or damaged, the archives."""
        fault = _first_fault(self.unpacked())
        if fault and _first_fault(self.archives()):
            return SourceStatus(False, fault, f"allow the download, or {self._by_hand()}")
        return SourceStatus(True, f"intact at {self.root}")

    def _by_hand(self) -> str:
        names = ", ".join(str(checked.path) for checked in self.archives())
        return f"get the files from {self.address} and save them as {names}"


class OfficialReader(PublishedReader, ListedReader):
    """A data set in its official folder, which users must fetch themselves because of its licence.

    Attributes:
        folder: The data set's folder, below the root.
        test_folder: The subfolder of the test images; it may have other images as well.
        archive: The file in the root that is unpacked; empty if users unpack it.
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

    def make_ready(self) -> None:
        if self._packed():
            status, archive = self.check(), self.root / self.archive
            if not status.present:
                raise InputError(f"dataset {self.name!r}: {status.detail}; {status.remedy}")
            try:
                unpack(archive, self.folder)
            except FAILURES as error:
                reason = f"{archive} cannot be unpacked: {error}"
                raise InputError(f"dataset {self.name!r}: {reason}") from error
        if not self.path.is_dir():
            raise InputError(f"dataset {self.name!r} does not exist; {self.instruction()}")

    def read(self, download: bool) -> tuple[DatasetInfo, Rows, Rows | None]:
        """Return the official parts as lists of files; unpack the archive first if necessary."""
        self.make_ready()
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
        """Check lists and folders without opening images, or the archive if it is not unpacked."""
        if self.awaited():
            return SourceStatus(False, f"{self.path} does not exist", self.instruction())
        if not self._packed():
            return super().check()
        packed = Checked(self.root / self.archive, self.md5)
        fault = packed.fault()
        return SourceStatus(not fault, fault or f"{packed.path} is intact", self.instruction())

    def _packed(self) -> bool:
        return not self.path.is_dir() and (self.root / self.archive).is_file()


def _first_fault(files: list[Checked]) -> str:
    return next(filter(None, (checked.fault() for checked in files)), "")


def _arrays(images: np.ndarray, labels: np.ndarray) -> RowArrays:
    images = images[..., None] if images.ndim == 3 else images
    return RowArrays(np.ascontiguousarray(images), np.asarray(labels, np.int64))
