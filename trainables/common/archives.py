"""Reads archives of NumPy arrays from untrusted sources."""

import math
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import psutil

from trainables.common.errors import InputError

ENDING = ".npy"
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# Largest ratio of unpacked to packed size for each of NumPy's compressions.
PACKED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
# Errors of NumPy and zipfile for damaged, encrypted and unusual members.
UNREADABLE = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zlib.error)
UNREADABLE_MEMBER = (
    *UNREADABLE,
    IndexError,
    OverflowError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class ArrayHeader:
    """Type and shape of an array, which are known before it is read."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the size of the values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayArchive:
    """An ``.npz`` file; refuses Python objects, damaged arrays, and arrays above free memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise InputError(f"{path} does not exist")
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except (*UNREADABLE, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is not an intact .npz archive: {error}") from error
        self._members = {m.filename.removesuffix(ENDING): m for m in members}
        if len(self._members) < len(members):
            raise InputError(f"{path} has two arrays with the same name")

    @property
    def names(self) -> list[str]:
        """Return the arrays' names, in the archive's order."""
        return list(self._members)

    def header(self, name: str) -> ArrayHeader:
        """Return an array's type and shape; raise ``InputError`` if it is missing or refused."""
        if name not in self._members:
            raise self._refuse(
                name, f"it does not exist; keys are {', '.join(self.names) or 'none'}"
            )
        member = self._members[name]
        if member.compress_type not in PACKED:
            raise self._refuse(name, "its compression is not one of NumPy's")
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as stream:
                header, start = _read_header(stream)
        except UNREADABLE_MEMBER as error:
            raise self._refuse(name, str(error)) from error
        if header.dtype.hasobject:
            raise self._refuse(
                name, "it has Python objects, which are never loaded; save words as y.astype(str)"
            )
        room = min(member.compress_size, self.path.stat().st_size) * PACKED[member.compress_type]
        if start + header.nbytes != member.file_size or member.file_size > room:
            raise self._refuse(
                name,
                f"its header says {header.dtype} {header.shape}, {header.nbytes} bytes, but the "
                "archive has another size",
            )
        return header

    def read(self, name: str) -> np.ndarray:
        """Return an array; raise ``InputError`` if it cannot be read or exceeds the free memory."""
        needed, free = self.header(name).nbytes, psutil.virtual_memory().available
        if needed > free:
            sizes = f"{needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free"
            raise self._refuse(name, f"it needs {sizes}")
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                return arrays[name]
        except UNREADABLE_MEMBER as error:
            raise self._refuse(name, str(error)) from error

    def _refuse(self, name: str, why: str) -> InputError:
        return InputError(f"{self.path}: key {name!r} cannot be read: {why}")


def _read_header(stream: IO[bytes]) -> tuple[ArrayHeader, int]:
    """Return the header of an ``.npy`` file and the position of its data."""
    version = np.lib.format.read_magic(stream)
    if version not in HEADERS:
        raise ValueError(f"expected format (1, 0) or (2, 0), got {version}")
    shape, _, dtype = HEADERS[version](stream)
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape} is negative")
    return ArrayHeader(dtype, shape), stream.tell()
