"""A suite as stored for one task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainables.data._guard import hand_out, require_unsealed
from trainables.data._prepared import file_hash
from trainables.data._seal import SUITE_MANIFEST
from trainables.errors import InputError
from trainables.suites._base import Suite
from trainables.suites._registry import find_suite

LABELS = "labels"
SCHEMA = 1


@dataclass(frozen=True)
class SuiteData:
    """A suite's images in the form of one task, on disk; found by ``SuiteData.open``.

    Attributes:
        directory: Holds one ``.npy`` a part, ``labels.npy`` and the manifest ``suite.json``.
        suite: What is measured on them.
        signature: Of the source and the task's data that it was made from.
        fingerprint: Hash (hex) of all images and labels.
        files: Size and SHA-256 of every file, by its name.
    """

    directory: Path
    suite: Suite
    signature: str
    fingerprint: str
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @classmethod
    def open(cls, directory: Path | str) -> SuiteData:
        """Find a stored suite; reads the manifest only.

        Raises:
            InputError: If the manifest is absent, damaged or of another version.
        """
        path = Path(directory).absolute() / SUITE_MANIFEST
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["schema"] != SCHEMA:
                raise InputError(f"{path} is not a manifest of version {SCHEMA}")
            return cls(
                directory=path.parent,
                suite=find_suite(document["name"], document["root"]),
                signature=document["signature"],
                fingerprint=document["fingerprint"],
                files=document["files"],
            )
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error

    def images(self, part: str) -> np.ndarray:
        """Return the images (N, H, W, C) of one part, uint8, memory-mapped.

        Raises:
            TestDataSealedError: If this process runs search trials.
            InputError: If the file is absent or damaged.
        """
        return self._load(part)

    def labels(self) -> np.ndarray:
        """Return the labels (N,), int64, memory-mapped; raises as ``images`` does."""
        return self._load(LABELS)

    def verify(self) -> None:
        """Hash every file and compare with the manifest.

        Raises:
            InputError: If a file is absent or damaged; the text names it.
        """
        for name, entry in self.files.items():
            path = self.directory / name
            if not path.is_file() or file_hash(path) != entry["sha256"]:
                raise InputError(f"{path} is absent or damaged: its checksum has changed")

    def _load(self, name: str) -> np.ndarray:
        require_unsealed(f"suite {self.suite.name!r}")
        path = self.directory / f"{name}.npy"
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        hand_out([found])
        return found
