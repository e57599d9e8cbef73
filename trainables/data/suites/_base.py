"""The form that every suite takes, and the registry."""

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
"""Log-probabilities (N, K), float32 on the CPU, of rows in the form of the task's, (N, ...)."""
Tensors = Mapping[str, Tensor]
"""What figures can be computed from again, by name."""
Judgement = tuple[dict[str, float], dict[str, Tensor]]
"""Metrics, fractions, and their tensors."""


@dataclass(frozen=True)
class SuiteData:
    """A suite's rows in the form of one task, on disk; found by ``SuiteData.open``.

    For the errors of what reads them see ``PreparedData``.

    Attributes:
        directory: Holds one ``.npy`` a part, ``labels.npy`` and the manifest ``suite.json``.
        name: The suite's, with an absolute path if it has one.
        root: The folder that downloaded data live in.
        signature: Of the source and the task's data that it was made from.
        fingerprint: Hash (hex) of all rows and labels.
        files: Size and SHA-256 of every file, by its name.
    """

    directory: Path
    name: str
    root: str
    signature: str
    fingerprint: str
    files: Files = field(repr=False)

    @classmethod
    def open(cls, directory: Path | str) -> Self:
        """Find a stored suite; reads the manifest only."""
        path = on_this_machine(Path(directory).absolute()) / SUITE_MANIFEST
        document = read_manifest(path)
        try:
            names = ("name", "root", "signature", "fingerprint", "files")
            found = cls(path.parent, **{name: document[name] for name in names})
        except KeyError as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        for name in names[:-1]:
            if not isinstance(getattr(found, name), str):
                raise InputError(f"{path} cannot be read: {name} is no text")
        return found

    def values(self, part: str) -> np.ndarray:
        """Return the rows (N, ...) of one part, in the form of the task's, memory-mapped."""
        require_unsealed(f"suite {self.name!r}")
        found = read_array(self.directory / f"{part}.npy")
        hand_out([found])
        return found

    def labels(self) -> np.ndarray:
        """Return the labels (N,), int64, memory-mapped."""
        return self.values(LABELS)

    def verify(self) -> None:
        """Hash every file and compare with the manifest."""
        check_files(self.directory, self.files)


class Part(NamedTuple):
    """``rows`` of a suite in the file ``name``, in the form of the task's, by ``blocks``."""

    name: str
    rows: int
    blocks: Iterable[np.ndarray]


class Suite(ABC):
    """Further test data of a task, with their metrics; a subclass is a registry entry.

    What reads the source raises ``InputError`` if it is damaged, or absent with no download.

    Args:
        name: The full name, such as ``ood-npz:my.npz``; for the others see ``Reader``.

    Attributes:
        pool: Metrics of a task's suites of one pool are averaged under this name.
    """

    pool = ""

    def __init__(self, name: str, argument: str, root: Path) -> None:
        self.name = name
        self.argument = argument
        self.root = local_path(root, "data root")

    @classmethod
    def names(cls, entry: str) -> list[str]:
        """Return what sweep files may write for the registry entry ``entry``."""
        return [entry]

    @classmethod
    def accepts(cls, argument: str) -> bool:
        """Return True if ``argument`` may follow the entry's name and a hyphen."""
        return not argument

    @property
    def label(self) -> str:
        """Return what metrics begin with: a name that every tracking server accepts."""
        return self.name

    def full_name(self) -> str:
        """Return a name that means the same from every working directory."""
        return self.name

    @abstractmethod
    def check(self, info: DatasetInfo) -> None:
        """Refuse a task's data that the suite does not fit, by an ``InputError`` that says why."""

    def missing_download(self) -> str:
        """Return what would have to be downloaded first, in one line; empty if nothing."""
        return ""

    @abstractmethod
    def signature(self) -> str:
        """Return a text that changes when the suite's source changes."""

    @abstractmethod
    def test_paths(self) -> list[Path]:
        """Return the files and folders of the source, which search trials must not open."""

    @abstractmethod
    def read(self, prepared: PreparedData, download: bool) -> tuple[np.ndarray, Iterable[Part]]:
        """Return the labels (N,), int64, of the rows, and the arrays to store."""

    @abstractmethod
    def judge(self, data: SuiteData, outputs: Outputs, clean: Tensor) -> Judgement:
        """Measure ``outputs`` on a stored suite; ``clean`` (M, K) are those of the test rows."""

    def figures(self, data: SuiteData, tensors: Tensors, clean: Tensor) -> dict[str, float]:
        """Return the metrics of ``judge`` from tensors of its rows, without the network."""
        raise self.refuse("its figures cannot be computed from what it stores")

    def check_shape(self, tensors: Tensors, name: str, shape: tuple[int, ...]) -> None:
        """Refuse tensors of which one is not there or has another shape."""
        found = tuple(tensors[name].shape) if name in tensors else "missing"
        if found != shape:
            raise self.refuse(f"{name} is {found}, expected is {shape}")

    def form(self, info: DatasetInfo) -> Images:
        """Return a task's inputs, for suites of images; refuse other kinds."""
        if not isinstance(info.inputs, Images):
            raise self.refuse(f"is of images, {info.name!r} holds {info.inputs.kind}")
        return info.inputs

    def refuse(self, reason: str) -> InputError:
        """Return the error that says why the suite cannot be used."""
        return InputError(f"suite {self.name!r}: {reason}")


SUITES: Registry[Suite] = Registry("suite", "trainables.data.suites", Suite, "suites")


def find_suite(name: str, root: Path | str) -> Suite:
    """Return the suite of ``name``: an entry, or an entry, a hyphen and its argument."""
    entry, argument = _split(name)
    if entry not in SUITES or not SUITES.get(entry).accepts(argument):
        raise InputError(f"unknown suite {name!r}; {known_names(name, suite_names(), SUITES.word)}")
    return SUITES.get(entry)(name, argument, local_path(root, "data root"))


def suite_code(name: str) -> str | None:
    """Return the hash of the code of the plugin that a suite comes from, or None if it is ours."""
    return SUITES.code(_split(name)[0])


def _split(name: str) -> tuple[str, str]:
    """Return a suite's entry, and what stands behind it."""
    if name in SUITES:
        return name, ""
    entry, _, argument = name.partition("-")
    return entry, argument


def suite_names() -> list[str]:
    """Return every suite's name, sorted; forms with an argument as ``ood-npz:PATH``."""
    return sorted(name for entry in SUITES.names() for name in SUITES.get(entry).names(entry))


def check_suites(names: Sequence[str], root: Path | str) -> None:
    """Make sure that all suites of a task are known and go by different labels."""
    labels: dict[str, str] = {}
    for name in names:
        label = find_suite(name, root).label
        if label in labels:
            raise InputError(f"{labels[label]!r} and {name!r} are both called {label!r}")
        labels[label] = name
