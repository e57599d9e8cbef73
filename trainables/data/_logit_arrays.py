"""Arrays of scores and labels by their names, in files of other kinds than an archive."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainables.common.errors import InputError
from trainables.data._stored import read_array
from trainables.data._tables import column_names, read_columns

# Each word that an array's name is made of, and how it is written in those we look for.
WORDS = {
    **dict.fromkeys(("logits", "logit"), "logits"),
    **dict.fromkeys(("probs", "prob", "probas", "probabilities"), "probs"),
    **dict.fromkeys(("labels", "label", "targets", "target", "y"), "labels"),
    **dict.fromkeys(("fit", "val", "valid", "validation", "cal"), "fit"),
    "test": "test",
    "predictions": "predictions",
}
SCORES = ("logits", "probs", "predictions")
COLUMN = re.compile(r"(?P<kind>logits?|probs?)_(?P<name>.+)", re.IGNORECASE)
HDF5 = (".h5", ".hdf5")
ARRAYS = ("probas_cal", "labels_cal", "probas_test", "labels_test")
ADDRESS = re.compile(r"(?P<path>.*\.(?:h5|hdf5)):(?P<name>.*)", re.DOTALL)


class NamedArrays(Protocol):
    """Arrays by their names, such as those of an archive."""

    path: Path

    @property
    def names(self) -> list[str]:
        """Return the names."""

    def read(self, name: str) -> np.ndarray:
        """Return an array."""


def plain_name(name: str) -> str:
    """Return an array's name in our words, such as ``labels_fit`` for ``y_val``."""
    return "_".join(WORDS.get(word, word) for word in name.split("_"))


class ArrayFiles:
    """Files ``.npy`` of one folder whose names differ only in what they hold, as an archive.

    Attributes:
        path: The first of their scores.
        name: What their names share, or else the folder's name.
    """

    def __init__(self, path: Path) -> None:
        self.name, _ = _taken_apart(path)
        self._files: dict[str, Path] = {}
        for file in sorted(path.parent.glob("*.npy")):
            name, array = _taken_apart(file)
            if array and name == self.name:
                known = self._files.setdefault(array, file)
                if known != file:
                    raise InputError(f"{known} and {file} mean the same; keep one of them")
        scores = [file for array, file in self._files.items() if set(array.split("_")) & {*SCORES}]
        if not scores:
            raise InputError(
                f"{path}: no scores in it or beside it; name the files logits.npy and labels.npy, "
                "or NAME_logits.npy and NAME_labels.npy (probs for probabilities)"
            )
        self.path = scores[0]

    @property
    def names(self) -> list[str]:
        """Return what the files hold, such as ``logits_fit``."""
        return list(self._files)

    @property
    def files(self) -> list[Path]:
        """Return the files."""
        return list(self._files.values())

    def read(self, name: str) -> np.ndarray:
        """Return the array of a file; see ``read_array``."""
        return read_array(self._files[name], mapped=False)


def _taken_apart(path: Path) -> tuple[str, str]:
    """Return what a file's name says beside our words, and those words."""
    words = re.split(r"[_.-]", path.stem)
    array = "_".join(WORDS[word] for word in words if word in WORDS)
    return "_".join(word for word in words if word not in WORDS) or path.parent.name, array


class ScoreTable:
    """A table with a column of labels and one of scores for each class, as an archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        columns = column_names(path)
        meaning = {name: plain_name(name.lower()) for name in columns}
        labels = [name for name in columns if meaning[name] == "labels"]
        if len(labels) != 1:
            found = f"{path}: {'several' if labels else 'no'} columns of labels"
            raise InputError(f"{found} ({_shown(columns)}); name one column label")
        (self._label,) = labels
        self._lists = [name for name in columns if meaning[name] in SCORES]
        self._columns: dict[str, str] = {}
        if self._lists:
            self.names = [*(meaning[name] for name in self._lists), "labels"]
        else:
            kinds, self._columns = _score_columns(path, [c for c in columns if c not in labels])
            self.names = [*kinds, "labels", "classes"]

    def read(self, name: str) -> np.ndarray:
        """Return labels (N,), names of classes (K,) or scores (N, K)."""
        if name == "labels":
            return read_columns(self.path, [self._label])[self._label]
        if name == "classes":
            return np.array([*self._columns])
        if self._lists:
            return read_columns(self.path, self._lists)[self._lists[0]]
        found = read_columns(self.path, (), list(self._columns.values()))
        return np.stack([found[column] for column in self._columns.values()], axis=1)


def _score_columns(path: Path, columns: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the kinds of scores, and the column of each class by its name.

    Columns are named ``logit_CLASS`` or ``prob_CLASS``, beside which others are passed over, or all
    are numbers of classes. Classes that are numbers are sorted.
    """
    named = {column: found for column in columns if (found := COLUMN.fullmatch(column))}
    kinds = sorted({plain_name(found["kind"].lower()) for found in named.values()})
    classes = {found["name"]: column for column, found in named.items()}
    if not named and columns and all(column.isdecimal() for column in columns):
        kinds, classes = ["predictions"], {column: column for column in columns}
    if all(name.isdecimal() for name in classes):
        classes = dict(sorted(classes.items(), key=lambda pair: int(pair[0])))
    if not classes:
        raise InputError(
            f"{path}: no columns of scores ({_shown(columns)}); name them logit_CLASS or "
            "prob_CLASS, one a class, such as logit_0, logit_1"
        )
    return kinds, classes


def _shown(columns: list[str]) -> str:
    return f"it has {', '.join(map(repr, columns[:6]))}{', ...' if len(columns) > 6 else ''}"


def split_address(address: str | Path) -> tuple[Path, str]:
    """Return path and set of ``PATH:dataset/model``; no set where none is named."""
    text = os.path.expanduser(address)
    found = ADDRESS.fullmatch(text)
    return (Path(found["path"]), found["name"].strip("/")) if found else (Path(text), "")


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
        return name, {array: _dataset(path, group, array) for array in ARRAYS}


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


def _dataset(path: Path, group: Any, name: str) -> np.ndarray:
    import h5py

    found = _member(group, name)
    if not isinstance(found, h5py.Dataset):
        raise InputError(
            f"{path}: {group.name} has no array {name!r}; needed are {', '.join(ARRAYS)}"
        )
    return np.asarray(found[()])
