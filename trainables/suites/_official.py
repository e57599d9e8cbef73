"""The corruption suites that come as arrays."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torchvision.datasets.utils import download_url

from trainables.data import DatasetInfo, PreparedData
from trainables.data._torchvision import FAILURES, Checked
from trainables.suites._base import Part
from trainables.suites._corruptions import CORRUPTIONS, SEVERITIES, CorruptionSuite
from trainables.suites._rows import kept_rows

LABELS = "labels"


class OfficialCorruptions(CorruptionSuite):
    """Corrupted CIFAR test images as their authors publish them.

    One ``CORRUPTION.npy`` of five times 10,000 images, severity by severity, in the order of the
    official test set, and ``labels.npy``. Of the 19 corruptions published, the 15 of the benchmark
    count; the four others are its validation set.

    Attributes:
        folder: The arrays' folder below the root.
        address: Where the archive is.
        archive: The archive's file name.
        md5: Its checksum.
        classes: Class names of the clean data set.
        images: Images of one severity.
    """

    folder = ""
    address = ""
    archive = ""
    md5 = ""
    classes: tuple[str, ...]
    images = 10_000

    def check(self, info: DatasetInfo) -> None:
        """Accept tasks with the clean data set's form and class names.

        Users' archives may leave the names out.
        """
        if (*info.size, info.channels) != (32, 32, 3):
            height, width = info.size
            raise self.refuse(
                f"has 32 x 32 images of 3 channels, {info.name!r} has {width} x {height} of "
                f"{info.channels}"
            )
        if info.num_classes != len(self.classes):
            raise self.refuse(
                f"has {len(self.classes)} classes, {info.name!r} has {info.num_classes}"
            )
        unnamed = info.classes == tuple(map(str, range(info.num_classes)))
        if info.classes != self.classes and not (unnamed and info.name.startswith("npz:")):
            number = next(k for k, name in enumerate(self.classes) if info.classes[k] != name)
            raise self.refuse(
                f"calls class {number} {self.classes[number]!r}, {info.name!r} calls it "
                f"{info.classes[number]!r}"
            )

    def missing_download(self) -> str:
        """Return the archive unless it is there, packed or unpacked."""
        packed = self.root / self.archive
        if (self.root / self.folder).is_dir() or packed.is_file():
            return ""
        return f"suite {self.name!r} is not downloaded yet: {packed} is absent"

    def signature(self) -> str:
        """Return a hash of names, sizes and times of the arrays."""
        digest = hashlib.sha256()
        for path in map(self._path, (*CORRUPTIONS, LABELS)):
            found = path.stat() if path.is_file() else None
            digest.update(f"{path}|{found and (found.st_size, found.st_mtime_ns)}\n".encode())
        return digest.hexdigest()

    def test_paths(self) -> list[Path]:
        """Return the arrays' folder and the archive."""
        return [self.root / self.folder, self.root / self.archive]

    def labels(self, prepared: PreparedData, download: bool) -> np.ndarray:
        """Return the labels of the rows that the task keeps."""
        labels = self._labels(download)
        return labels[kept_rows(labels, prepared.split)]

    def parts(self, prepared: PreparedData, download: bool) -> Iterator[Part]:
        """Yield one part a corruption."""
        rows = kept_rows(self._labels(download), prepared.split)
        for corruption in CORRUPTIONS:
            images = self._array(corruption)
            if images.dtype != np.uint8 or images.shape != (SEVERITIES * self.images, 32, 32, 3):
                raise self.refuse(
                    f"{self._path(corruption)} is {images.dtype} {images.shape}, expected is uint8 "
                    f"{(SEVERITIES * self.images, 32, 32, 3)}"
                )
            blocks = (images[severity * self.images + rows] for severity in range(SEVERITIES))
            yield Part(corruption, SEVERITIES * len(rows), blocks)

    def _labels(self, download: bool) -> np.ndarray:
        self._provide(download)
        labels = self._array(LABELS)
        if labels.dtype.kind not in "iu" or labels.shape != (SEVERITIES * self.images,):
            raise self.refuse(
                f"{self._path(LABELS)} is {labels.dtype} {labels.shape}, expected are integers "
                f"{(SEVERITIES * self.images,)}"
            )
        first = labels[: self.images].astype(np.int64)
        if not 0 <= first.min() <= first.max() < len(self.classes):
            raise self.refuse(
                f"{self._path(LABELS)} holds labels outside 0..{len(self.classes) - 1}"
            )
        if (labels.reshape(SEVERITIES, -1) != first).any():
            raise self.refuse(f"{self._path(LABELS)} differs between severities")
        return first

    def _path(self, name: str) -> Path:
        return self.root / self.folder / f"{name}.npy"

    def _array(self, name: str) -> np.ndarray:
        try:
            return np.load(self._path(name), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise self.refuse(f"{self._path(name)} cannot be read: {error}") from error

    def _provide(self, download: bool) -> None:
        """Unpack the archive, after a download if need be, unless the folder is there."""
        packed = Checked(self.root / self.archive, self.md5)
        if (self.root / self.folder).is_dir():
            return
        by_hand = (
            f"put {self.archive} from {self.address} into {self.root}, or use generated-c, whose "
            "corruptions are generated"
        )
        if packed.path.is_file() and packed.fault():
            raise self.refuse(f"{packed.fault()}; {by_hand}")
        if not packed.path.is_file() and not download:
            raise self.refuse(f"{self.root / self.folder} is absent; {by_hand}")
        try:
            if not packed.path.is_file():
                download_url(self._url(), str(self.root), self.archive, self.md5)
            self._unpack(packed.path)
        except (*FAILURES, tarfile.TarError) as error:
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise self.refuse(f"{line}; {by_hand}") from error

    def _url(self) -> str:
        return f"{self.address}/files/{self.archive}"

    def _unpack(self, archive: Path) -> None:
        # Renamed when whole: what an interruption leaves must not pass for the arrays.
        scratch = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=self.root))
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            os.replace(scratch / self.folder, self.root / self.folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
