"""A split data set on disk, search data and test data apart."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainables.data._arrays import ImageArrays, LabelledImages
from trainables.data._guard import hand_out, is_sealed, require_unsealed
from trainables.data._info import DatasetInfo
from trainables.data._split import SplitSpec
from trainables.errors import InputError

MANIFEST = "split.json"
SEARCH, TEST, SUITES = "search", "test", "suites"
SCHEMA = 1
SECONDS_BETWEEN_NOTICES = 5.0

Notice = Callable[[str], None]
"""Told how far a long preparation is."""


def silent(text: str) -> None:
    """Tell no one."""


@dataclass(frozen=True, eq=False)
class SearchData:
    """What a search trial may see; memory-mapped, read-only, one copy for all processes of a node.

    Attributes:
        train: Training images.
        validation: Validation images; no image is in both.
    """

    train: ImageArrays
    validation: ImageArrays


@dataclass(frozen=True)
class PreparedData:
    """A split data set on disk, made by ``prepare`` or found by ``PreparedData.open``.

    Attributes:
        directory: Holds ``search/``, ``test/`` and the manifest ``split.json``.
        key: Hash (hex) of all that determines the content: images, constants and split.
        info: The data set's constants.
        fingerprint: SHA-256 (hex) of the whole unsplit data set.
        split: How it was split.
        counts: Number of images of ``train``, ``validation`` and ``test``.
        files: Size and SHA-256 of every file, by its path below ``directory``.
    """

    directory: Path
    key: str
    info: DatasetInfo
    fingerprint: str
    split: SplitSpec
    counts: Mapping[str, int]
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @classmethod
    def open(cls, directory: Path | str) -> PreparedData:
        """Find prepared data by its directory; reads the manifest only.

        Raises:
            InputError: If the manifest is absent or damaged, or a file is absent or has another
                size than the manifest says.
        """
        directory = Path(directory).absolute()
        document = read_manifest(directory)
        try:
            found = cls(
                directory=directory,
                key=document["key"],
                info=DatasetInfo.from_dict(document["info"]),
                fingerprint=document["fingerprint"],
                split=SplitSpec(**document["split"]),
                counts=document["counts"],
                files=document["files"],
            )
            found._check_sizes()
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{directory / MANIFEST} is damaged: {error!r}") from error
        return found

    def search(self) -> SearchData:
        """Return training and validation images.

        Raises:
            InputError: If a file is absent or damaged.
        """
        return SearchData(
            train=self._load(SEARCH, "train_"), validation=self._load(SEARCH, "validation_")
        )

    def test(self) -> ImageArrays:
        """Return the test images: for the chosen configuration of a study only.

        Raises:
            TestDataSealedError: If this process is sealed.
            InputError: If a file is absent or damaged.
        """
        require_unsealed("PreparedData.test()")
        arrays = self._load(TEST, "")
        hand_out((arrays.images, arrays.labels))
        return arrays

    def verify(self) -> None:
        """Hash every file that this process may open and compare with the manifest.

        Raises:
            InputError: If a file is damaged; the text names it.
        """
        for name, entry in self.files.items():
            if is_sealed() and name.startswith(f"{TEST}/"):
                continue
            if file_hash(self.directory / name) != entry["sha256"]:
                raise InputError(f"{self.directory / name} is damaged: its checksum has changed")

    def _check_sizes(self) -> None:
        for name, entry in self.files.items():
            path = self.directory / name
            size = path.stat().st_size if path.is_file() else None
            if size != entry["bytes"]:
                found = "is absent" if size is None else f"has {size} bytes"
                raise InputError(f"{path} {found}, expected are {entry['bytes']} bytes")

    def _load(self, folder: str, prefix: str) -> ImageArrays:
        paths = [self.directory / folder / f"{prefix}{part}.npy" for part in ("images", "labels")]
        try:
            images, labels = (np.load(p, mmap_mode="r", allow_pickle=False) for p in paths)
            return ImageArrays(images, labels)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{paths[0]} or {paths[1].name} cannot be read: {error}") from error


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a prepared directory.

    Raises:
        InputError: If it is absent, damaged or of another version.
    """
    path = directory / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a manifest of version {SCHEMA}")
    return document


def file_hash(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_part(
    folder: Path, prefix: str, part: LabelledImages, rows: np.ndarray, notice: Notice = silent
) -> None:
    """Write one part's images, labels and row numbers as ``.npy`` files below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_blocks(folder / f"{prefix}images.npy", (len(part), *part.shape), part.blocks(), notice)
    for name, array in (("labels", part.labels), ("indices", rows)):
        np.save(folder / f"{prefix}{name}.npy", np.ascontiguousarray(array), allow_pickle=False)


def write_blocks(
    path: Path, shape: tuple[int, ...], blocks: Iterable[np.ndarray], notice: Notice = silent
) -> None:
    """Write uint8 blocks of rows, in all of ``shape``, one after the other as one ``.npy`` file.

    Not through a memory map: a full disk would then end the process without a word.
    """
    fields = {"descr": "|u1", "fortran_order": False, "shape": shape}
    told, done = time.monotonic(), 0
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, fields)
        for block in blocks:
            stream.write(np.ascontiguousarray(block).data)
            done += len(block)
            if time.monotonic() - told > SECONDS_BETWEEN_NOTICES:
                told = time.monotonic()
                notice(f"{done:,} of {shape[0]:,} images")


def describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of every ``.npy`` file below ``directory``."""
    return {
        path.relative_to(directory).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": file_hash(path),
        }
        for path in sorted(directory.rglob("*.npy"))
    }


def digest(fields: Mapping[str, Any] | Iterable[Any]) -> str:
    """Return a hash (32 hex digits) of JSON-able values."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
