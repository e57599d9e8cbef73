"""What the readers of data sets share that people have to fetch by hand."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainables.data._arrays import LabelledImages
from trainables.data._files import ImageFiles
from trainables.data._info import DatasetInfo
from trainables.data._source import Reader, SourceStatus
from trainables.data._torchvision import Checked
from trainables.errors import InputError

# Of ImageNet's training images; torchvision's and timm's pretrained networks expect them. The
# released code of Mukhoti et al. (2020) and MbLS (2022) uses them for Tiny-ImageNet, MbLS for CUB.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Listing = Sequence[tuple[Path, int]]


class OfficialReader(Reader):
    """A data set in its official folders, whose licence asks people to fetch it themselves.

    Its images are decoded while they are stored, a block at a time, and never held all at once.

    Attributes:
        folder: The folder below the root that holds it.
        address: Where it can be had, for people.
        size: Height and width that images are stored in.
        resize: See ``ImageFiles``.
        lists: Text files in the folder that name images, labels or parts.
    """

    folder = ""
    address = ""
    size: tuple[int, int]
    resize: tuple[int, ...] = ()
    lists: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The data set's folder."""
        return self.root / self.folder

    @abstractmethod
    def info(self, classes: tuple[str, ...]) -> DatasetInfo:
        """Return the constants."""

    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """Return the classes' names, in the order of their labels."""

    @abstractmethod
    def listing(self, train: bool, classes: tuple[str, ...]) -> Listing:
        """Return file and label of every image of one part, in a fixed order."""

    def unpack(self) -> None:
        """Unpack what people have put there, if there is anything to unpack."""

    def packed(self) -> bool:
        """Tell whether ``unpack`` would unpack something."""
        return False

    def instruction(self) -> str:
        """Return what has to be put where, in one line."""
        return f"get it from {self.address} and put it into {self.path}"

    def read(self, download: bool) -> tuple[DatasetInfo, LabelledImages, LabelledImages | None]:
        """Return both official parts as lists of files."""
        self.unpack()
        classes, train, test = self._parts()
        return self.info(classes), train, test

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the labels that the lists or folders give, or None before they are unpacked."""
        if self.packed():
            return None
        _, train, test = self._parts()
        return train.labels, test.labels

    def files(self) -> list[Path]:
        """Return the lists and every image; no image where the layout is not the official one."""
        lists = [self.path / name for name in self.lists]
        try:
            classes = self.class_names()
            images = [path for part in (True, False) for path, _ in self.listing(part, classes)]
        except InputError:
            return lists
        return lists + images

    def check(self) -> SourceStatus:
        """List the images, without opening them."""
        try:
            classes = self.class_names()
            counts = [len(self.listing(part, classes)) for part in (True, False)]
        except InputError as error:
            return SourceStatus(False, str(error), self.instruction())
        found = f"{counts[0]:,} training and {counts[1]:,} test images"
        return SourceStatus(True, f"{self.path}: {len(classes)} classes, {found}")

    def _parts(self) -> tuple[tuple[str, ...], ImageFiles, ImageFiles]:
        if not self.path.is_dir():
            raise InputError(f"dataset {self.name!r} does not exist; {self.instruction()}")
        classes = self.class_names()
        return classes, self._part(True, classes), self._part(False, classes)

    def _part(self, train: bool, classes: tuple[str, ...]) -> ImageFiles:
        listing = self.listing(train, classes)
        labels = np.array([label for _, label in listing], np.int64)
        return ImageFiles([path for path, _ in listing], labels, self.size, self.resize)


class ArchivedReader(OfficialReader):
    """One that comes as one archive with a known MD5, which is unpacked if it lies in the root.

    Attributes:
        archive: The archive's file name.
        md5: Its checksum.
    """

    archive = ""
    md5 = ""

    def unpack(self) -> None:
        """Unpack the archive unless the folder is there already.

        Raises:
            InputError: If its checksum is wrong or it cannot be unpacked.
        """
        if not self.packed():
            return
        packed = Checked(self.root / self.archive, self.md5)
        if packed.fault():
            raise InputError(f"dataset {self.name!r}: {packed.fault()}; {self.instruction()}")
        # Renamed when whole: what an interruption leaves must not pass for the data set.
        scratch = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=self.root))
        try:
            _extract(packed.path, scratch)
            os.replace(scratch / self.folder, self.path)
        except (OSError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise InputError(
                f"dataset {self.name!r}: {packed.path} cannot be unpacked: {error}"
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def packed(self) -> bool:
        """Tell whether the archive is there and the folder is not."""
        return not self.path.is_dir() and (self.root / self.archive).is_file()

    def instruction(self) -> str:
        """Return what has to be put where, in one line."""
        return f"get {self.archive} from {self.address} and put it into {self.root}"

    def check(self) -> SourceStatus:
        """List the images; an intact archive is as good as its folder."""
        packed = Checked(self.root / self.archive, self.md5)
        if self.packed():
            fault = packed.fault()
            return SourceStatus(not fault, fault or f"{packed.path} is intact", self.instruction())
        return super().check()


def labelled(folder: Path, names: Sequence[str], label: int) -> Listing:
    """Return the files of one class.

    Raises:
        InputError: If there is none; the text names the folder.
    """
    if not names:
        raise InputError(f"{folder} holds no image")
    return [(folder / name, label) for name in names]


def lines_of(path: Path) -> list[list[str]]:
    """Return the words of every line of a text file.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _extract(archive: Path, target: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(target)
        return
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
