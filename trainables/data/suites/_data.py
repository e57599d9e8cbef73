from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from trainables.common.errors import InputError
from trainables.common.paths import on_this_machine
from trainables.data._guard import hand_out, require_unsealed
from trainables.data._seal import SUITE_MANIFEST
from trainables.data._stored import Files, check_hashes, read_array, read_manifest

LABELS = "labels"


@dataclass(frozen=True)
class SuiteData:
    """A suite's rows in the form of one task, on disk; found by ``SuiteData.open``.

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
        """Return the rows (N, ...) of one part, in the form of the task's, memory-mapped.

        Raises:
            TestDataSealedError: If this process runs search trials.
            InputError: If the file is absent or damaged.
        """
        require_unsealed(f"suite {self.name!r}")
        found = read_array(self.directory / f"{part}.npy")
        hand_out([found])
        return found

    def labels(self) -> np.ndarray:
        """Return the labels (N,), int64, memory-mapped; raises as ``values`` does."""
        return self.values(LABELS)

    def verify(self) -> None:
        """Hash every file and compare with the manifest.

        Raises:
            InputError: If a file is absent or damaged; the text names it.
        """
        check_hashes(self.directory, self.files)
