from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainables.common.errors import InputError
from trainables.common.words import many
from trainables.data import DatasetInfo, PreparedData
from trainables.data._prepared import read_array
from trainables.data._published import FAILURES, Checked, line_of, unpack
from trainables.data._rows import limit_rows
from trainables.data._source import files_signature
from trainables.data.cifar import CLASSES, FINE_CLASSES
from trainables.data.suites._base import LABELS, SUITES, Part
from trainables.data.suites._corruptions import CORRUPTIONS, SEVERITIES, CorruptionSuite


class OfficialCorruptions(CorruptionSuite):
    """Corrupted CIFAR test images as published by their authors.

    The files are ``labels.npy`` and one ``CORRUPTION.npy`` of five times 10,000 images, severity by
    severity, in the order of the official test set. Only the 15 corruptions of the benchmark are
    used; the four others are its validation set.

    Attributes:
        folder: The arrays' folder, below the root.
        address: Web page of the archive.
        archive: The archive's file name.
        md5: The archive's checksum.
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
        """Accept tasks with the clean data's form and class names; npz archives may lack names."""
        form = self.form(info)
        if form.row != (32, 32, 3):
            height, width = form.size
            raise self.refuse(
                f"has 32 x 32 images of 3 channels, but {info.name!r} has {width} x {height} "
                f"images of {many(form.channels, 'channel')}"
            )
        classes = len(self.classes)
        if info.num_classes != classes:
            raise self.refuse(f"has {classes} classes, but {info.name!r} has {info.num_classes}")
        unnamed = info.classes == tuple(map(str, range(classes)))
        if info.classes != self.classes and not (unnamed and info.name.startswith("npz:")):
            number = next(k for k, name in enumerate(self.classes) if info.classes[k] != name)
            raise self.refuse(
                f"names class {number} {self.classes[number]!r}, but {info.name!r} names it "
                f"{info.classes[number]!r}"
            )

    def missing_download(self) -> str:
        packed = self.root / self.archive
        if (self.root / self.folder).is_dir() or packed.is_file():
            return ""
        return f"suite {self.name!r} is not downloaded yet: {packed} is missing"

    def signature(self) -> str:
        return files_signature(map(self._path, (*CORRUPTIONS, LABELS)))

    def test_paths(self) -> list[Path]:
        return [self.root / self.folder, self.root / self.archive]

    def read(self, prepared: PreparedData, download: bool) -> tuple[np.ndarray, Iterator[Part]]:
        """Return labels and one part per corruption, within the task's limit of test rows."""
        self._provide(download)
        labels = self._labels()
        rows = limit_rows(labels, prepared.split)
        return labels[rows], self._parts(rows)

    def _parts(self, rows: np.ndarray) -> Iterator[Part]:
        for corruption in CORRUPTIONS:
            images = self._array(corruption, np.uint8, "uint8", 32, 32, 3)
            blocks = (images[severity * self.images + rows] for severity in range(SEVERITIES))
            yield Part(corruption, SEVERITIES * len(rows), blocks)

    def _labels(self) -> np.ndarray:
        labels = self._array(LABELS, np.integer, "integers")
        first = labels[: self.images].astype(np.int64)
        path, most = self._path(LABELS), len(self.classes) - 1
        if not 0 <= first.min() <= first.max() <= most:
            raise self.refuse(f"{path}: expected labels from 0 to {most}")
        if (labels.reshape(SEVERITIES, -1) != first).any():
            raise self.refuse(f"{path} differs between severities")
        return first

    def _path(self, name: str) -> Path:
        return self.root / self.folder / f"{name}.npy"

    def _array(self, name: str, kind: type, expected: str, *row: int) -> np.ndarray:
        """Return an array of all severities after checking its type and shape."""
        try:
            found = read_array(self._path(name))
        except InputError as error:
            raise self.refuse(str(error)) from error
        shape = (SEVERITIES * self.images, *row)
        if not np.issubdtype(found.dtype, kind) or found.shape != shape:
            got = f"got {found.dtype} {found.shape}"
            raise self.refuse(f"{self._path(name)}: expected {expected} {shape}, {got}")
        return found

    def _provide(self, download: bool) -> None:
        """If the folder is missing, download the archive unless it exists, and unpack it."""
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
            raise self.refuse(f"{self.root / self.folder} is missing; {by_hand}")
        from torchvision.datasets.utils import download_url  # Importing it takes a second.

        try:
            if not packed.path.is_file():
                url = f"{self.address}/files/{self.archive}"
                download_url(url, str(self.root), self.archive, self.md5)
            unpack(packed.path, self.folder)
        except FAILURES as error:
            raise self.refuse(f"{line_of(error)}; {by_hand}") from error


@SUITES.register("cifar10-c")
class Cifar10C(OfficialCorruptions):
    """CIFAR-10-C (Hendrycks and Dietterich, ICLR 2019): the official arrays, 2.9 GB."""

    folder = "CIFAR-10-C"
    address = "https://zenodo.org/records/2535967"
    archive = "CIFAR-10-C.tar"
    md5 = "56bf5dcef84df0e2308c6dcbcbbd8499"
    classes = CLASSES


@SUITES.register("cifar100-c")
class Cifar100C(OfficialCorruptions):
    """CIFAR-100-C (Hendrycks and Dietterich, ICLR 2019): the official arrays, 2.9 GB."""

    folder = "CIFAR-100-C"
    address = "https://zenodo.org/records/3555552"
    archive = "CIFAR-100-C.tar"
    md5 = "11f0ed0f1191edbf9fa23466ae6021d3"
    classes = FINE_CLASSES
