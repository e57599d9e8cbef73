"""The base class of suites, their stored data, and their registry."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from trainables.common.errors import InputError, known_names
from trainables.common.files import Files, check_files
from trainables.common.later import Tensor
from trainables.common.paths import local_path, on_this_machine
from trainables.common.registry import Registry
from trainables.data import DatasetInfo, Images, PreparedData
from trainables.data._guard import hand_out, require_unsealed
from trainables.data._prepare import SUITE_MANIFEST
from trainables.data._prepared import read_array, read_manifest

LABELS = "labels"

Outputs = Callable[[np.ndarray], Tensor]
"""Computes log-probabilities (N, K), float32 on the CPU, of rows (N, ...) like the task's."""
Tensors = Mapping[str, Tensor]
"""Stored tensors, by name, from which metrics can be recomputed."""
Judgement = tuple[dict[str, float], dict[str, Tensor]]
"""Metrics, as fractions, and the tensors to store."""


@dataclass(frozen=True)
class SuiteData:
    """A suite's rows on disk, in the form of a task's rows; opened by ``SuiteData.open``.

    Errors are those of ``PreparedData``.

    Attributes:
        directory: The folder of ``labels.npy``, a ``.npy`` per part, and ``suite.json``.
        name: The suite's name, with an absolute path if it has a path.
        root: The folder of downloaded data.
        signature: The source's signature when the data was made.
        fingerprint: Hash (hex) of all rows and labels.
        files: Size and SHA-256 of every ``.npy`` file, by name.
    """

    directory: Path
    name: str
    root: str
    signature: str
    fingerprint: str
    files: Files = field(repr=False)

    @classmethod
    def open(cls, directory: Path | str) -> Self:
        """Open a stored suite; reads only its manifest."""
        path = on_this_machine(Path(directory).absolute()) / SUITE_MANIFEST
        document = read_manifest(path)
        try:
            names = ("name", "root", "signature", "fingerprint", "files")
            found = cls(path.parent, **{name: document[name] for name in names})
        except KeyError as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        for name in names[:-1]:
            if not isinstance(getattr(found, name), str):
                raise InputError(f"{path} cannot be read: {name} is not a text")
        return found

    def values(self, part: str) -> np.ndarray:
        """Return the rows (N, ...) of one part, memory-mapped."""
        require_unsealed(f"suite {self.name!r}")
        found = read_array(self.directory / f"{part}.npy")
        hand_out([found])
        return found

    def labels(self) -> np.ndarray:
        """Return the labels (N,), int64, memory-mapped."""
        return self.values(LABELS)

    def verify(self) -> None:
        """Compare the hash of every file with the manifest."""
        check_files(self.directory, self.files)


class Part(NamedTuple):
    """The rows to store in the file ``name``; ``rows`` is their number, ``blocks`` their values."""

    name: str
    rows: int
    blocks: Iterable[np.ndarray]


class Suite(ABC):
    """Further test data of a task, and its metrics; a subclass is a registry entry.

    Args:
        name: The full name, such as ``ood-npz:my.npz``.
        argument: The text after the entry's name and a hyphen, such as ``npz:my.npz``, or "".
        root: The folder of downloaded data sets.

    Attributes:
        pool: Name for the averages of metrics over the task's suites with the same pool; "" for no
            averages.
    """

    pool = ""

    def __init__(self, name: str, argument: str, root: Path) -> None:
        self.name = name
        self.argument = argument
        self.root = local_path(root, "data root")

    @classmethod
    def names(cls, entry: str) -> list[str]:
        """Return the names of the suites of a registry entry, for lists."""
        return [entry]

    @classmethod
    def accepts(cls, argument: str) -> bool:
        """Return True if ``argument`` may follow the entry's name and a hyphen."""
        return not argument

    @property
    def label(self) -> str:
        """Return the prefix of the suite's metrics, a name that every tracking server accepts."""
        return self.name

    def full_name(self) -> str:
        """Return the name with absolute paths."""
        return self.name

    @abstractmethod
    def check(self, info: DatasetInfo) -> None:
        """Raise ``InputError`` if the suite does not fit a task's data."""

    def missing_download(self) -> str:
        """Return a line on the data that must be downloaded first, or ""."""
        return ""

    @abstractmethod
    def signature(self) -> str:
        """Return a text that changes when the suite's source changes."""

    @abstractmethod
    def test_paths(self) -> list[Path]:
        """Return the source's files and folders, which search trials must not open."""

    @abstractmethod
    def read(self, prepared: PreparedData, download: bool) -> tuple[np.ndarray, Iterable[Part]]:
        """Return the rows' labels (N,), int64, and the parts to store."""

    @abstractmethod
    def judge(self, data: SuiteData, outputs: Outputs, clean: Tensor) -> Judgement:
        """Measure ``outputs`` on a suite; ``clean`` is what it returns for the task's test rows."""

    def figures(self, data: SuiteData, tensors: Tensors, clean: Tensor) -> dict[str, float]:
        """Return the metrics of ``judge`` from its stored tensors, or raise ``InputError``."""
        raise self.refuse("its figures cannot be computed from the stored tensors")

    def check_shape(self, tensors: Tensors, name: str, shape: tuple[int, ...]) -> None:
        """Raise ``InputError`` if a tensor is missing or has another shape."""
        found = tuple(tensors[name].shape) if name in tensors else "none"
        if found != shape:
            raise self.refuse(f"{name}: expected a tensor of shape {shape}, got {found}")

    def form(self, info: DatasetInfo) -> Images:
        """Return a task's inputs if they are images, else raise ``InputError``."""
        if not isinstance(info.inputs, Images):
            raise self.refuse(
                f"expected a task of images, but {info.name!r} has {info.inputs.kind}"
            )
        return info.inputs

    def refuse(self, reason: str) -> InputError:
        """Return an error that names the suite."""
        return InputError(f"suite {self.name!r}: {reason}")


SUITES: Registry[Suite] = Registry("suite", "trainables.data.suites", Suite, "suites")


def find_suite(name: str, root: Path | str) -> Suite:
    """Return the suite of ``name``: an entry, or ``ENTRY-ARGUMENT``."""
    entry, argument = _split(name)
    if entry not in SUITES or not SUITES.get(entry).accepts(argument):
        raise InputError(f"unknown suite {name!r}; {known_names(name, suite_names(), SUITES.word)}")
    return SUITES.get(entry)(name, argument, local_path(root, "data root"))


def suite_code(name: str) -> str | None:
    """Return the hash of the code of the suite's plugin, or None for built-in suites."""
    return SUITES.code(_split(name)[0])


def _split(name: str) -> tuple[str, str]:
    if name in SUITES:
        return name, ""
    entry, _, argument = name.partition("-")
    return entry, argument


def suite_names() -> list[str]:
    """Return the sorted names of all suites; arguments are shown as in ``ood-npz:PATH``."""
    return sorted(name for entry in SUITES.names() for name in SUITES.get(entry).names(entry))


def check_suites(names: Sequence[str], root: Path | str) -> None:
    """Raise ``InputError`` if a suite of a task is unknown or two have the same label."""
    labels: dict[str, str] = {}
    for name in names:
        label = find_suite(name, root).label
        if label in labels:
            raise InputError(f"suites {labels[label]!r} and {name!r} have the same label {label!r}")
        labels[label] = name
