"""Unsplit data sets, the base classes of their readers, and the registry of readers."""

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
    """An unsplit data set.

    Attributes:
        info: The data set's constants.
        train: The official training rows, or all rows if there is no official test set.
        test: The official test rows, or None.
        fingerprint: SHA-256 (hex) of the content of all rows and labels.
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
                    f"{inputs.kind}: expected {expected}, got {part.dtype} {part.shape}"
                )
            if part.labels.max() >= self.info.num_classes:
                raise ValueError(
                    f"label {part.labels.max()} is outside [0, {self.info.num_classes - 1}]"
                )


@dataclass(frozen=True)
class SourceStatus:
    """Whether a data set can be read now, and otherwise how to get it.

    Attributes:
        present: Whether it can be read without a download.
        detail: One line on the files found, or on the problem.
        remedy: One line on how to get the files; used only if it is not present.
    """

    present: bool
    detail: str
    remedy: str = ""


Outline = tuple[tuple[str, ...], np.ndarray, np.ndarray | None]
"""Class names, labels of training rows, and labels of official test rows or None."""


class Reader(ABC):
    """Reads one data set; a subclass is one registry entry.

    Args:
        name: The full name, such as ``npz:my.npz``.
        argument: The text after the colon, or "".
        root: The folder of downloaded data sets.

    Attributes:
        kind: The form of its rows.
        placeholder: Name of the required argument after a colon, such as ``PATH``, or "".
        takes_argument: Whether an argument after a colon is allowed.
        accepts: The keys of a task's ``inputs`` that it accepts.
        downloads: True if ``read`` can fetch missing files.
        validation: Default of the split's ``validation``.
        edition: Increased when files are read differently than before, so that rows stored by an
            older release are read again.
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
            raise InputError(f"dataset {name!r}: {head!r} takes no argument; remove the colon")
        if self.placeholder and not argument:
            raise InputError(f"dataset {name!r}: expected {head}:{self.placeholder}")
        self.name = name
        self.argument = argument
        self.root = local_path(root, "data root")
        self.settings: Mapping[str, Any] = {}

    def adjust(self, settings: Mapping[str, Any]) -> None:
        """Check the keys of a task's ``inputs``, such as ``length``, and store the ``inputs``."""
        for key in settings:
            if key not in self.accepts:
                allowed = ", ".join(self.accepts) or "none"
                raise InputError(
                    f"dataset {self.name!r}: unknown key inputs.{key}; keys are {allowed}"
                )
        self.settings = dict(settings)

    @abstractmethod
    def read(self, download: bool) -> tuple[DatasetInfo, Rows, Rows | None]:
        """Return constants, training rows, and official test rows or None.

        Missing files are fetched if ``download`` and if the reader can do this.
        """

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return training labels (N,), and official test labels (M,) or None.

        Returns None instead of both if this needs a download or would be slow. Raises the errors of
        ``read`` that are found in this way.
        """
        return None

    def own_validation(self) -> np.ndarray | None:
        """Return the rows of the data set's own validation list, or None; see ``Rows``."""
        return None

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files that ``read`` reads, whether or not they exist."""

    @abstractmethod
    def test_paths(self) -> list[Path]:
        """Return the files and folders that contain test rows."""

    @abstractmethod
    def check(self) -> SourceStatus:
        """Return the source's status: present if ``read`` works without a download."""

    def awaited(self) -> bool:
        """Return True if users must fetch the data by hand and nothing is there yet."""
        return False

    def full_name(self) -> str:
        """Return the name with absolute paths."""
        return self.name

    def signature(self) -> str:
        """Return a text that changes when a file changes; see ``files_signature``."""
        return files_signature(self.files())


class OutlinedReader(Reader):
    """A data set whose classes and labels are read before a sweep, if possible without its rows.

    ``noun`` is the word for rows in messages.
    """

    noun = "images"

    @property
    @abstractmethod
    def path(self) -> Path:
        """The data set's file or folder."""

    @abstractmethod
    def instruction(self) -> str:
        """Return one line on where to put which files."""

    @abstractmethod
    def outline(self) -> Outline:
        """Return class names, training labels, and official test labels or None; see ``labels``."""

    def labels(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        _, train, test = self.outline()
        return train, test

    def check(self) -> SourceStatus:
        """Return the status: present, with counts of rows, if ``outline`` raises no error."""
        try:
            classes, train, test = self.outline()
        except InputError as error:
            return SourceStatus(False, str(error), self.instruction())
        part = "training" if self.kind.trains else "fitting"
        found = (
            f"{len(train):,} {self.noun}; `split.test` holds out test {self.noun}"
            if test is None
            else f"{len(train):,} {part} and {len(test):,} test {self.noun}"
        )
        return SourceStatus(True, f"{self.path}: {len(classes)} classes, {found}")


class PathReader(Reader):
    """Reads the file or folder at the path in its name, such as ``npz:PATH``."""

    placeholder = "PATH"
    takes_argument = True

    @property
    def path(self) -> Path:
        return local_path(self.argument, f"dataset {self.name!r}")

    def full_name(self) -> str:
        return f"{self.name.partition(':')[0]}:{self.path}"


def files_signature(paths: Iterable[Path]) -> str:
    """Return a hash of the paths, sizes and modification times of files, which may be missing."""
    digest = hashlib.sha256()
    for path in paths:
        found = path.stat() if path.is_file() else None
        digest.update(f"{path}|{found and (found.st_size, found.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


SOURCES: Registry[Reader] = Registry("dataset", "trainables.data", Reader, "datasets")


def find_reader(name: str, root: Path | str, settings: Mapping[str, Any] | None = None) -> Reader:
    """Return the reader of ``name``; ``settings`` are the ``inputs`` of a task."""
    head, _, argument = name.partition(":")
    reader = SOURCES.get(head)(name, argument, local_path(root, "data root"))
    reader.adjust(settings or {})
    return reader


def source_names() -> list[str]:
    """Return the sorted names of all data sets; arguments are shown as in ``npz:PATH``."""
    forms = ((name, SOURCES.get(name).placeholder) for name in SOURCES.names())
    return [f"{name}:{placeholder}" if placeholder else name for name, placeholder in forms]


def read_source(
    name: str, root: Path | str, download: bool = True, settings: Mapping[str, Any] | None = None
) -> Source:
    """Read a whole data set, into memory or as a list of files.

    Do not use this for training, because it returns test data as well; ``prepare`` separates them.
    See ``prepare`` for the arguments.

    Raises:
        TestDataSealedError: If this process is sealed.
    """
    require_unsealed(f"read_source({name!r})")
    return handed_out(*find_reader(name, root, settings).read(download))


def handed_out(info: DatasetInfo, train: Rows, test: Rows | None) -> Source:
    """Return a source whose test data must be given up before a seal; see ``hand_out``."""
    with_test_rows = train if test is None else test
    hand_out(with_test_rows.arrays)
    return Source(info, train, test, fingerprint(train, test))
