"""Files of many sets of probabilities, in the format of CalArena (arXiv 2605.30188)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trainables.common.errors import InputError

HDF5 = (".h5", ".hdf5")
ARRAYS = ("probas_cal", "labels_cal", "probas_test", "labels_test")
ADDRESS = re.compile(r"(?P<path>.*\.(?:h5|hdf5)):(?P<name>.*)", re.DOTALL)


def split_address(address: str | Path) -> tuple[Path, str]:
    """Return path and set of ``PATH:dataset/model``; no set where none is named."""
    found = ADDRESS.fullmatch(str(address))
    return (Path(found["path"]), found["name"].strip("/")) if found else (Path(address), "")


def find_sets(path: Path) -> list[str]:
    """Return the names ``dataset/model`` of a file's sets, in the file's order."""
    with _opened(path) as file:
        names = [
            f"{dataset}/{model}"
            for dataset in file
            for model in (_group(file, dataset) or ())
            if _group(file, f"{dataset}/{model}")
        ]
    if not names:
        raise InputError(f"{path}: no group dataset/model in it")
    return names


def read_set(path: Path, name: str) -> tuple[str, dict[str, np.ndarray]]:
    """Return a set's name and its ``ARRAYS``; the only one of a file needs no name."""
    if not name:
        names = find_sets(path)
        if len(names) > 1:
            raise InputError(
                f"{path}: holds {len(names)} sets; write PATH:{names[0]} for the first"
            )
        (name,) = names
    with _opened(path) as file:
        group = _group(file, name)
        if group is None:
            raise InputError(f"{path}: no set {name!r}; there are: {', '.join(find_sets(path))}")
        return name, {array: _array(path, group, array) for array in ARRAYS}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as error:
        raise InputError(f"{path}: needs h5py: pip install 'calsweep[hdf5]'") from error
    try:
        with h5py.File(path, "r") as file:
            yield file
    # What h5py raises of a damaged file.
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as HDF5 ({error})") from error


def _member(group: Any, name: str) -> Any:
    """Return a member that lies in the same file, or None."""
    import h5py

    link = group.get(name, getlink=True)
    return group.get(name) if isinstance(link, h5py.HardLink) else None


def _group(file: Any, name: str) -> Any:
    import h5py

    found = file
    for part in name.split("/"):
        found = _member(found, part) if isinstance(found, h5py.Group) else None
    return found if isinstance(found, h5py.Group) else None


def _array(path: Path, group: Any, name: str) -> np.ndarray:
    import h5py

    found = _member(group, name)
    if not isinstance(found, h5py.Dataset):
        raise InputError(
            f"{path}: {group.name} has no array {name!r}; needed are {', '.join(ARRAYS)}"
        )
    return np.asarray(found[()])
