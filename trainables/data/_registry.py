"""The registry that every reader adds itself to, and the names that lead to them."""

from __future__ import annotations

from pathlib import Path

from trainables.data._arrays import fingerprint
from trainables.data._guard import hand_out, require_unsealed
from trainables.data._source import Reader, Source, SourceStatus
from trainables.registry import Registry

SOURCES: Registry[Reader] = Registry("dataset", "trainables.data")


def find_reader(name: str, root: Path | str) -> Reader:
    """Return the reader of ``name``, a registry name with its argument, if any, after a colon.

    Raises:
        InputError: If the name is unknown or its argument is not allowed.
    """
    head, _, argument = name.partition(":")
    return SOURCES.get(head)(name, argument, Path(root))


def source_names() -> list[str]:
    """Return every data set's name, sorted; forms with an argument as ``npz:PATH``."""
    forms = ((name, SOURCES.get(name).placeholder) for name in SOURCES.names())
    return [f"{name}:{placeholder}" if placeholder else name for name, placeholder in forms]


def read_source(name: str, root: Path | str, download: bool = True) -> Source:
    """Read a whole data set: into memory, or as a list of files where it may not fit.

    Do not use this for training: it gives test data too. ``prepare`` keeps the two apart.

    Args:
        name: A name as in ``source_names``.
        root: The folder that downloaded data sets live in.
        download: Whether absent files may be downloaded.

    Raises:
        InputError: If the name is unknown, or files are absent or damaged.
        TestDataSealedError: If this process is sealed.
    """
    require_unsealed(f"read_source({name!r})")
    info, train, test = find_reader(name, root).read(download)
    held = train if test is None else test
    hand_out(held.arrays)
    return Source(info, train, test, fingerprint(train, test))


def check_source(name: str, root: Path | str) -> SourceStatus:
    """Tell whether a data set is there and intact; never downloads.

    Raises:
        InputError: If the name is unknown.
    """
    return find_reader(name, root).check()
