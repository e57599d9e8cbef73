"""Folders that are stored once, whole, with a manifest of their files."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock

from trainables.common.archives import UNREADABLE_MEMBER
from trainables.common.errors import InputError
from trainables.common.files import place_folder, scratch_folder
from trainables.common.sharing import LOCK_MODE, inherit
from trainables.data._inputs import Inputs

SCHEMA = 1
SECONDS_BETWEEN_NOTICES = 5.0

Notice = Callable[[str], None]
"""Told how far a long preparation is."""
Found = TypeVar("Found")


def silent(text: str) -> None:
    """Tell no one."""


def find_or_make(find: Callable[[], Found | None], make: Callable[[], Found], lock: Path) -> Found:
    """Return what ``find`` finds, or else what ``make`` makes; one process makes, others wait."""
    found = find()
    if found is not None:
        return found
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock, mode=LOCK_MODE):
        return find() or make()


@contextmanager
def make_folder(directory: Path) -> Iterator[Path]:
    """Give a folder to fill that replaces ``directory`` when whole."""
    with scratch_folder(".making-", directory.parent) as scratch:
        yield scratch
        inherit(scratch)
        if directory.exists():
            with scratch_folder(".damaged-", directory.parent) as old:
                os.replace(directory, old)
        place_folder(scratch, directory)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a manifest of today's version; one that may not be read is a ``PermissionError``."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError:
        raise  # It may be intact.
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a manifest of version {SCHEMA}")
    return document


def read_array(path: Path, mapped: bool = True) -> np.ndarray:
    """Return the array of a file ``.npy``, memory-mapped unless told otherwise."""
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except UNREADABLE_MEMBER as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def write_blocks(
    path: Path, inputs: Inputs, count: int, blocks: Iterable[np.ndarray], notice: Notice
) -> None:
    """Write blocks of rows, ``count`` in all, one after the other as one ``.npy`` file.

    Not through a memory map: a full disk would then end the process without a word.
    """
    shape = (count, *inputs.row)
    fields = {"descr": inputs.dtype.str, "fortran_order": False, "shape": shape}
    noticed, done = time.monotonic(), 0
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, fields)
        for block in blocks:
            stream.write(np.ascontiguousarray(inputs.encode(block)).data)
            done += len(block)
            if time.monotonic() - noticed > SECONDS_BETWEEN_NOTICES:
                noticed = time.monotonic()
                notice(f"{done:,} of {count:,} {inputs.kind}")


def digest(fields: Mapping[str, Any] | Iterable[Any]) -> str:
    """Return a hash (32 hex digits) of JSON-able values."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
