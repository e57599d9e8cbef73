"""A split data set on disk; search data and test data are in separate folders."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from filelock import FileLock

from trainables.common.archives import UNREADABLE_MEMBER
from trainables.common.errors import InputError
from trainables.common.files import (
    LOCK_MODE,
    Files,
    check_files,
    inherit,
    place_folder,
    scratch_folder,
)
from trainables.common.paths import on_this_machine
from trainables.data._copies import Copies
from trainables.data._guard import hand_out, is_sealed, require_unsealed
from trainables.data._inputs import DatasetInfo, Inputs
from trainables.data._rows import RowArrays, SplitSpec

SCHEMA = 1
SECONDS_BETWEEN_NOTICES = 5.0

Notice = Callable[[str], None]
"""Receives progress messages of a long preparation."""
Found = TypeVar("Found")


def silent(text: str) -> None:
    """Ignore a notice."""


def find_or_make(find: Callable[[], Found | None], make: Callable[[], Found], lock: Path) -> Found:
    """Return the result of ``find``, or of ``make`` if that is None.

    Only one process at a time runs ``make``; ``lock`` is the lock's file.
    """
    found = find()
    if found is not None:
        return found
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock, mode=LOCK_MODE):
        return find() or make()


@contextmanager
def make_folder(directory: Path) -> Iterator[Path]:
    """Yield an empty folder, which replaces ``directory`` at the end of the block."""
    with scratch_folder(".making-", directory.parent) as scratch:
        yield scratch
        inherit(scratch)
        if directory.exists():
            with scratch_folder(".damaged-", directory.parent) as old:
                os.replace(directory, old)
        place_folder(scratch, directory)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a manifest of version ``SCHEMA``.

    Raises:
        InputError: If the file is missing, is damaged or has another version.
        PermissionError: If the file may not be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError:
        raise  # The manifest may be intact.
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a manifest of version {SCHEMA}")
    return document


def read_array(path: Path, mapped: bool = True) -> np.ndarray:
    """Return the array of a ``.npy`` file."""
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except UNREADABLE_MEMBER as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def write_blocks(
    path: Path, inputs: Inputs, count: int, blocks: Iterable[np.ndarray], notice: Notice
) -> None:
    """Write blocks of rows, ``count`` in all, as one ``.npy`` file.

    A memory map is not used, because a full disk would then kill the process without a message.
    """
    shape = (count, *inputs.row)
    fields = {"descr": inputs.dtype.str, "fortran_order": False, "shape": shape}
    noticed, done = time.monotonic(), 0
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, fields)
        for block in inputs.stored(blocks, path):
            stream.write(np.ascontiguousarray(block).data)
            done += len(block)
            if time.monotonic() - noticed > SECONDS_BETWEEN_NOTICES:
                noticed = time.monotonic()
                notice(f"{done:,} of {count:,} {inputs.kind}")


def digest(fields: Mapping[str, Any] | Iterable[Any]) -> str:
    """Return a hash (32 hex digits) of JSON-able values."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


MANIFEST = "split.json"
SEARCH, TEST, SUITES = "search", "test", "suites"


@dataclass(frozen=True, eq=False)
class SearchData:
    """Training and validation rows, memory-mapped, so that the processes of a node share them."""

    train: RowArrays
    validation: RowArrays


@dataclass(frozen=True)
class PreparedData:
    """A split data set on disk, made by ``prepare`` or opened by ``PreparedData.open``.

    Missing and damaged files raise ``InputError``; methods that read test rows raise
    ``TestDataSealedError`` in a sealed process.

    Attributes:
        directory: The folder of ``search/``, ``test/`` and the manifest ``split.json``.
        key: Hash (hex) of rows, constants and split, which determine the content.
        info: The data set's constants.
        fingerprint: SHA-256 (hex) of the whole unsplit data set.
        split: How it was split.
        counts: Number of rows of ``train``, ``validation`` and ``test``.
        files: Size and SHA-256 of every ``.npy`` file, by its path below ``directory``.
        copies: Counts of rows that are in two parts; None if they were not counted.
    """

    directory: Path
    key: str
    info: DatasetInfo
    fingerprint: str
    split: SplitSpec
    counts: Mapping[str, int]
    files: Files = field(repr=False)
    copies: Copies | None = None

    @classmethod
    def open(cls, directory: Path | str) -> Self:
        """Open a prepared directory; reads only its manifest and the sizes of its files."""
        directory = on_this_machine(Path(directory).absolute())
        document = read_manifest(directory / MANIFEST)
        try:
            found = cls(
                directory=directory,
                key=document["key"],
                info=DatasetInfo.from_dict(document["info"]),
                fingerprint=document["fingerprint"],
                split=SplitSpec(**document["split"]),
                counts=document["counts"],
                files=document["files"],
                copies=Copies(**document["copies"]) if "copies" in document else None,
            )
            check_files(directory, found.files, hashed=False)
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"{directory / MANIFEST} is damaged: {error!r}") from error
        return found

    def search(self) -> SearchData:
        """Return training and validation rows."""
        return SearchData(
            train=self._load(SEARCH, "train_"), validation=self._load(SEARCH, "validation_")
        )

    def test(self) -> RowArrays:
        """Return the test rows; use them only for the configuration that a study chose."""
        require_unsealed("PreparedData.test()")
        arrays = self._load(TEST, "")
        content = getattr(arrays.values, "content", None)  # The bytes of encoded images.
        hand_out((*arrays.arrays, *([] if content is None else [content])))
        return arrays

    def test_numbers(self) -> np.ndarray:
        """Return the numbers of the test rows in the source, (N,), int64."""
        require_unsealed("PreparedData.test_numbers()")
        return read_array(self.directory / TEST / "indices.npy")

    def search_numbers(self, part: str) -> np.ndarray:
        """Return the numbers of ``train`` or ``validation`` rows in the source, (N,), int64."""
        return read_array(self.directory / SEARCH / f"{part}_indices.npy")

    def verify(self) -> None:
        """Compare the hash of every file, except sealed ones, with the manifest."""
        closed = f"{TEST}/" if is_sealed() else "\0"
        open_to_us = {n: entry for n, entry in self.files.items() if not n.startswith(closed)}
        check_files(self.directory, open_to_us)

    def _load(self, folder: str, prefix: str) -> RowArrays:
        inputs = self.info.inputs
        paths = [
            self.directory / folder / f"{prefix}{name}.npy" for name in (inputs.kind, "labels")
        ]
        values, labels = map(read_array, paths)
        values = inputs.loaded(values, paths[0])
        try:
            inputs.check(values)
            return RowArrays(values, labels)
        except ValueError as error:
            raise InputError(f"{self.directory / folder} cannot be read: {error}") from error
