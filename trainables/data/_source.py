"""A data set as its owner publishes it, the form that every reader takes, and the registry."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError
from trainables.common.paths import local_path
from trainables.common.registry import Registry
from trainables.data._guard import hand_out, require_unsealed
from trainables.data._images import Images
from trainables.data._inputs import DatasetInfo, Inputs
from trainables.data._rows import TENTH, Rows, fingerprint


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, unsplit.

    Attributes:
        info: Its constants.
        train: The official training rows, or all rows where there is no official test set.
        test: The official test rows, or None.
        fingerprint: SHA-256 (hex) of the content of all rows and labels.

    Raises:
        ValueError: If rows or labels contradict ``info``.
    """

    info: DatasetInfo
    train: Rows
    test: Rows | None
    fingerprint: str

    def __post_init__(self) -> None:
        inputs = self.info.inputs
        for part in filter(None, (self.train, self.test)):
            if (part.dtype, part.shape) != inputs.given:
                expected = " ".join(map(str, inputs.given))
                raise ValueError(
                    f"{inputs.kind} are {part.dtype} {part.shape}, expected {expected}"
                )
            if part.labels.max() >= self.info.num_classes:
                raise ValueError(
                    f"label {part.labels.max()} is outside [0, {self.info.num_classes - 1}]"
                )


@dataclass(frozen=True)
class SourceStatus:
    """Whether a data set can be read now, for ``calsweep doctor``.

    Attributes:
        present: Whether its files are there and intact.
        detail: The files found, in one line.
        remedy: What to do about it, in one line; empty if there is nothing to do.
    """

    present: bool
    detail: str
    remedy: str = ""


Outline = tuple[tuple[str, ...], np.ndarray, np.ndarray | None]
"""Class names, labels of training rows, and those of test rows where there is an official set."""


class Reader(ABC):
    """Reads one data set; a subclass is one registry entry.

    A setting that is unknown or out of its range is an ``InputError``, and so is a file that is
    damaged, or absent and cannot be downloaded.

    Args:
        name: The full name, such as ``npz:my.npz``.
        argument: What follows the colon; empty if nothing does.
        root: The folder that downloaded data sets live in.

    Attributes:
        kind: What its rows are.
        placeholder: What has to follow a colon after the name, such as ``PATH``; empty if nothing.
        takes_argument: Whether anything may follow a colon.
        accepts: What ``inputs`` of a task it takes.
        downloads: True if ``read`` can fetch missing files.
        validation: What a split holds out for validation where nobody says.
        edition: Raised when files are read differently than before, so that rows which an older
            release stored are read again.
    """

    edition = 0
    kind: type[Inputs] = Images
    validation: float | str = TENTH
    placeholder = ""
    takes_argument = False
    accepts: tuple[str, ...] = ()
    downloads = False

    def __init__(self, name: str, argument: str, root: Path) -> None:
        head = name.partition(":")[0]
        if argument and not self.takes_argument:
            raise InputError(f"dataset {name!r}: nothing may follow {head!r}")
        if self.placeholder and not argument:
            raise InputError(f"dataset {name!r} has to be written {head}:{self.placeholder}")
        self.name = name
        self.argument = argument
        self.root = local_path(root, "data root")
        self.settings: Mapping[str, Any] = {}

    def adjust(self, settings: Mapping[str, Any]) -> None:
        """Take the ``inputs`` of a task, how rows are to be stored; most kinds have no choice."""
        for key in settings:
            if key not in self.accepts:
                allowed = ", ".join(self.accepts) or "none"
                raise InputError(
                    f"dataset {self.name!r}: inputs.{key} is unknown; it takes {allowed}"
                )
        self.settings = dict(settings)

    @abstractmethod
    def read(self, download: bool) -> tuple[DatasetInfo, Rows, Rows | None]:
        """Return constants, training images and test images, or None without an official set."""

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return labels as ``read`` would, or None where only images or a download tell them.

        What ``read`` refuses without looking at images is refused here too, and as it does.
        """
        return None

    def own_validation(self) -> np.ndarray | None:
        """Return the rows of its own validation list as ``read`` would; see ``Rows``."""
        return None

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files that ``read`` reads, whether or not they exist."""

    @abstractmethod
    def test_paths(self) -> list[Path]:
        """Return the files and folders from which test images could be read."""

    @abstractmethod
    def check(self) -> SourceStatus:
        """Return the status of the source: ready if ``read`` would work without a download."""

    def awaited(self) -> bool:
        """Return True if people have to fetch the data by hand and have not begun to."""
        return False

    def full_name(self) -> str:
        """Return a name that means the same from every working directory."""
        return self.name

    def signature(self) -> str:
        """Return a hash of names, sizes and times of the files; it changes when they do."""
        return files_signature(self.files())


class OutlinedReader(Reader):
    """A data set whose classes and labels are known without a look at images (``noun``: rows)."""

    noun = "images"

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file or folder that holds it."""

    @abstractmethod
    def instruction(self) -> str:
        """Return what to put where, in one line."""

    @abstractmethod
    def outline(self) -> Outline:
        """Return class names and the labels of training and test rows; see ``labels``."""

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        _, train, test = self.outline()
        return train, test

    def check(self) -> SourceStatus:
        """Check everything that shows without a look at images."""
        try:
            classes, train, test = self.outline()
        except InputError as error:
            return SourceStatus(False, str(error), self.instruction())
        part = "training" if self.kind.trains else "fitting"
        found = (
            f"{len(train):,} {self.noun}, `split.test` of them test {self.noun}"
            if test is None
            else f"{len(train):,} {part} and {len(test):,} test {self.noun}"
        )
        return SourceStatus(True, f"{self.path}: {len(classes)} classes, {found}")


class PathReader(Reader):
    """Reads what lies at the path in its name, such as ``npz:PATH``."""

    placeholder = "PATH"
    takes_argument = True

    @property
    def path(self) -> Path:
        """The file or folder."""
        return local_path(self.argument, f"dataset {self.name!r}")

    def full_name(self) -> str:
        return f"{self.name.partition(':')[0]}:{self.path}"


def files_signature(paths: Iterable[Path]) -> str:
    """Return a hash of names, sizes and times of files, whether or not they exist."""
    digest = hashlib.sha256()
    for path in paths:
        found = path.stat() if path.is_file() else None
        digest.update(f"{path}|{found and (found.st_size, found.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


SOURCES: Registry[Reader] = Registry("dataset", "trainables.data", Reader, "datasets")


def find_reader(name: str, root: Path | str, settings: Mapping[str, Any] | None = None) -> Reader:
    """Return the reader of ``name``, a registry name, perhaps a colon and its argument."""
    head, _, argument = name.partition(":")
    reader = SOURCES.get(head)(name, argument, local_path(root, "data root"))
    reader.adjust(settings or {})
    return reader


def source_names() -> list[str]:
    """Return every data set's name, sorted; forms with an argument as ``npz:PATH``."""
    forms = ((name, SOURCES.get(name).placeholder) for name in SOURCES.names())
    return [f"{name}:{placeholder}" if placeholder else name for name, placeholder in forms]


def read_source(
    name: str,
    root: Path | str,
    download: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Source:
    """Read a whole data set: into memory, or as a list of files where it may not fit.

    Do not use this for training: it gives test data too. ``prepare`` keeps the two apart; see there
    for the arguments.

    Raises:
        TestDataSealedError: If this process is sealed.
    """
    require_unsealed(f"read_source({name!r})")
    info, train, test = find_reader(name, root, settings).read(download)
    held = train if test is None else test
    hand_out(held.arrays)
    return Source(info, train, test, fingerprint(train, test))
