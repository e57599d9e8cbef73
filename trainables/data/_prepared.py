"""A split data set on disk, search data and test data apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from trainables.common.errors import InputError
from trainables.common.files import Files, check_files
from trainables.common.paths import on_this_machine
from trainables.data._copies import Copies
from trainables.data._guard import hand_out, is_sealed, require_unsealed
from trainables.data._inputs import DatasetInfo
from trainables.data._rows import RowArrays
from trainables.data._split import SplitSpec
from trainables.data._stored import read_array, read_manifest

MANIFEST = "split.json"
SEARCH, TEST, SUITES = "search", "test", "suites"


@dataclass(frozen=True, eq=False)
class SearchData:
    """What a search trial may see; memory-mapped, read-only, one copy for all processes of a node.

    Attributes:
        train: Training rows.
        validation: Validation rows; no row is in both.
    """

    train: RowArrays
    validation: RowArrays


@dataclass(frozen=True)
class PreparedData:
    """A split data set on disk, made by ``prepare`` or found by ``PreparedData.open``.

    A file that is absent or damaged is an ``InputError`` that names it, and a question for test
    rows in a sealed process a ``TestDataSealedError``.

    Attributes:
        directory: Holds ``search/``, ``test/`` and the manifest ``split.json``.
        key: Hash (hex) of all that determines the content: rows, constants and split.
        info: The data set's constants.
        fingerprint: SHA-256 (hex) of the whole unsplit data set.
        split: How it was split.
        counts: Number of rows of ``train``, ``validation`` and ``test``.
        files: Size and SHA-256 of every file, by its path below ``directory``.
        copies: Rows that are in two parts; None where they were not counted.
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
        """Find prepared data by its directory; reads the manifest only.

        Raises:
            InputError: If the manifest is absent or damaged, or a file is absent or has another
                size than the manifest says.
        """
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
        """Return the test rows: for the chosen configuration of a study only."""
        require_unsealed("PreparedData.test()")
        arrays = self._load(TEST, "")
        hand_out(arrays.arrays)
        return arrays

    def test_numbers(self) -> np.ndarray:
        """Return which rows of the source the test rows are, (N,), int64."""
        require_unsealed("PreparedData.test_numbers()")
        return read_array(self.directory / TEST / "indices.npy")

    def search_numbers(self, part: str) -> np.ndarray:
        """Return which rows of the source ``train`` or ``validation`` is, (N,), int64."""
        return read_array(self.directory / SEARCH / f"{part}_indices.npy")

    def verify(self) -> None:
        """Hash every file that this process may open and compare with the manifest."""
        closed = f"{TEST}/" if is_sealed() else "\0"
        open_to_us = {n: entry for n, entry in self.files.items() if not n.startswith(closed)}
        check_files(self.directory, open_to_us)

    def _load(self, folder: str, prefix: str) -> RowArrays:
        values, labels = (
            read_array(self.directory / folder / f"{prefix}{name}.npy")
            for name in (self.info.inputs.kind, "labels")
        )
        try:
            self.info.inputs.check(values)
            return RowArrays(values, labels)
        except ValueError as error:
            raise InputError(f"{self.directory / folder} cannot be read: {error}") from error
