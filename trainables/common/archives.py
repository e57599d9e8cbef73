"""Archives of NumPy arrays that somebody else wrote, trusting nothing in them."""

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
# How often what NumPy's ways of packing leave may hold itself; deflate's format allows no more.
PACKED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
# What a damaged, encrypted or unusual member makes NumPy and zipfile raise.
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
    """The header of an array, known before it is read."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all entries."""
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayArchive:
    """An ``.npz`` file: no pickles, and no array that its archive or this machine cannot hold."""

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
            raise InputError(f"{path} has two arrays of the same name")

    @property
    def names(self) -> list[str]:
        """Return the arrays' names, in the archive's order."""
        return list(self._members)

    def header(self, name: str) -> ArrayHeader:
        """Return an array's type and shape; nothing else is read."""
        if name not in self._members:
            raise self._refuse(name, f"there is none; there are: {', '.join(self.names) or 'none'}")
        member = self._members[name]
        if member.compress_type not in PACKED:
            raise self._refuse(name, "it is packed by a method that NumPy does not write")
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as stream:
                header, start = _read_header(stream)
        except UNREADABLE_MEMBER as error:
            raise self._refuse(name, str(error)) from error
        if header.dtype.hasobject:
            raise self._refuse(
                name, "it holds Python objects, which are never loaded; save words as y.astype(str)"
            )
        room = min(member.compress_size, self.path.stat().st_size) * PACKED[member.compress_type]
        if start + header.nbytes != member.file_size or member.file_size > room:
            raise self._refuse(
                name,
                f"its header says {header.dtype} {header.shape}, {header.nbytes} bytes, which is "
                "not what the archive holds",
            )
        return header

    def read(self, name: str) -> np.ndarray:
        """Return an array; raises ``InputError`` where it cannot be read, as ``header`` does."""
        needed, free = self.header(name).nbytes, psutil.virtual_memory().available
        if needed > free:
            sizes = f"{needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free"
            raise self._refuse(name, f"it takes {sizes}")
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                return arrays[name]
        except UNREADABLE_MEMBER as error:
            raise self._refuse(name, str(error)) from error

    def _refuse(self, name: str, why: str) -> InputError:
        return InputError(f"{self.path}: key {name!r} cannot be read: {why}")


def _read_header(stream: IO[bytes]) -> tuple[ArrayHeader, int]:
    """Return the header of an ``.npy`` file, and where its data begin."""
    version = np.lib.format.read_magic(stream)
    if version not in HEADERS:
        raise ValueError(f"format {version} is for names of fields, which no array here has")
    shape, _, dtype = HEADERS[version](stream)
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape} is negative")
    return ArrayHeader(dtype, shape), stream.tell()
