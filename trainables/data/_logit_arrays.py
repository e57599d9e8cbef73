"""Arrays of scores and labels by their names, in files of other kinds than an archive."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainables.common.errors import InputError
from trainables.data._class_numbers import whole_number
from trainables.data._labels import note
from trainables.data._prepared import read_array
from trainables.data._tables import column_names, read_columns

# Each word that an array's name is made of, and how it is written in those we look for.
WORDS = {
    **dict.fromkeys(("logits", "logit"), "logits"),
    **dict.fromkeys(("probs", "prob", "probas", "probabilities"), "probs"),
    **dict.fromkeys(("labels", "label", "targets", "target", "y"), "labels"),
    **dict.fromkeys(("fit", "val", "valid", "validation", "cal"), "fit"),
    "test": "test",
    "predictions": "predictions",
    "classes": "classes",
}
SCORES = ("logits", "probs", "predictions")
NAMED = 5  # Classes without a column that a note names.
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
COLUMN = re.compile(r"(?P<kind>logits?|probs?)_(?P<name>.+)", re.IGNORECASE)
# Columns such as logit_max hold a figure of the row.
STATISTICS = re.compile(
    "argmax|average|avg|diff|difference|entropy|gap|label|margin|max|maximum|mean|median|min|"
    "minimum|norm|pred|predicted|prediction|std|sum|target|total|var",
    re.IGNORECASE,
)
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


def plain_name(name: str, words: Mapping[str, str] = WORDS) -> str:
    """Return an array's name in our words, such as ``labels_fit`` for ``y_val``."""
    return "_".join(words.get(word, word) for word in name.split("_"))


class ArrayFiles:
    """Files ``.npy`` of one folder whose names differ only in what they hold, as an archive.

    Args:
        path: One of the files.
        words: The words that say what a file holds; see ``WORDS``.
        wanted: Those of values; there has to be a file of one of them.
        mapped: Whether arrays are memory-mapped.

    Attributes:
        path: The first file of values.
        name: What their names share, or else the folder's name.
    """

    def __init__(
        self,
        path: Path,
        words: Mapping[str, str] = WORDS,
        wanted: Sequence[str] = SCORES,
        mapped: bool = False,
    ) -> None:
        self.name, _ = _taken_apart(path, words)
        self._files: dict[str, Path] = {}
        self._mapped = mapped
        for file in sorted(path.parent.glob("*.npy")):
            name, array = _taken_apart(file, words)
            if array and name == self.name:
                known = self._files.setdefault(array, file)
                if known != file:
                    raise InputError(f"{known} and {file} mean the same; keep one of them")
        values = [file for array, file in self._files.items() if {*array.split("_")} & {*wanted}]
        if not values:
            what, hint = wanted[0], " (probs for probabilities)" if "probs" in wanted else ""
            raise InputError(
                f"{path}: no {'scores' if hint else what} in it or beside it; name the files "
                f"{what}.npy and labels.npy, or NAME_{what}.npy and NAME_labels.npy{hint}"
            )
        self.path = values[0]

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
        return read_array(self._files[name], self._mapped)


def _taken_apart(path: Path, known: Mapping[str, str]) -> tuple[str, str]:
    """Return the words of a file's name that are not known, and the known ones."""
    words = re.split(r"[_.-]", path.stem)
    array = "_".join(known[word] for word in words if word in known)
    return "_".join(word for word in words if word not in known) or path.parent.name, array


class ScoreTable:
    """A table of labels and scores for each class, as an archive; ``kind`` decides between two."""

    def __init__(self, path: Path, kind: str | None = None) -> None:
        self.path = path
        columns = column_names(path)
        meaning = {name: plain_name(name.lower()) for name in columns}
        labels = [name for name in columns if meaning[name] == "labels"]
        if len(labels) != 1:
            found = f"{path}: {'several' if labels else 'no'} columns of labels"
            raise InputError(f"{found} ({_shown(columns)}); name one column label")
        (self._label,) = labels
        scores = _score_columns(path, [name for name in columns if name not in labels], kind)
        self._lists = [name for name in scores if meaning[name] in SCORES]
        self.names = [*dict.fromkeys(scores.values()), "labels"]
        if self._lists:
            return
        self._columns = _class_columns(path, [*scores])
        self.names.append("classes")
        self._refuse_statistics()

    def _refuse_statistics(self) -> None:
        """Refuse a column such as ``logit_max``, unless a label says that it is a class."""
        odd = next((name for name in self._columns if STATISTICS.fullmatch(name)), None)
        if odd is not None and odd not in self.read("labels"):
            raise InputError(
                f"{self.path}: column {self._columns[odd]!r} is not a class, as its name says; "
                "remove it or rename it"
            )

    def read(self, name: str) -> np.ndarray:
        """Return labels (N,), names of classes (K,) or scores (N, K)."""
        if name == "labels":
            return read_columns(self.path, [self._label])[self._label]
        if name == "classes":
            return np.array([*self._columns])
        if self._lists and self.path.suffix == ".parquet":
            return read_columns(self.path, self._lists)[self._lists[0]]
        columns = self._lists or [*self._columns.values()]
        found = read_columns(self.path, (), columns)
        return np.stack([found[column] for column in columns], axis=1)


def _score_columns(path: Path, columns: list[str], kind: str | None) -> dict[str, str]:
    """Return the kinds of scores that are in columns, all of one kind, by the columns' names.

    Columns are named ``logit_CLASS`` or ``prob_CLASS``, and others are passed over, or all are
    numbers of classes, or each of ``logits`` and ``probs`` holds a list per row.
    """
    single = {
        name: plain_name(match["kind"].lower())
        for name in columns
        if (match := COLUMN.fullmatch(name))
    }
    lists = {name: plain for name in columns if (plain := plain_name(name.lower())) in SCORES}
    if single and (path.suffix != ".parquet" or {*lists.values()} == {"predictions"}):
        lists = {}
    scores = lists or single
    if not scores and columns and all(map(str.isdecimal, columns)):
        return dict.fromkeys(columns, "predictions")
    if not scores:
        raise InputError(
            f"{path}: no columns of scores ({_shown(columns)}); name them logit_CLASS or "
            "prob_CLASS, one a class, such as logit_0, logit_1"
        )
    if kind in scores.values():
        return {name: its for name, its in scores.items() if its == kind}
    if len({*scores.values()}) > 1:
        first = {its: name for name, its in reversed(scores.items())}
        found = " and ".join(f"{its} ({name!r})" for its, name in sorted(first.items()))
        raise InputError(
            f"{path}: has columns of {found}; remove one kind, or choose by --kind, in a task "
            "inputs: {kind: logits}"
        )
    return scores


def _class_columns(path: Path, columns: list[str]) -> dict[str, str]:
    """Return the columns of scores by the names of their classes; whole numbers are sorted."""
    classes: dict[str, str] = {}
    for column in columns:
        found = COLUMN.fullmatch(column)
        name = found["name"] if found else column
        twin = name if name in classes else _renamed(name)
        if twin in classes:
            raise InputError(f"{path}: {classes[twin]!r} and {column!r} are the same class")
        classes[name] = column
    numbers = [name for name in classes if NUMBER.fullmatch(name)]
    if numbers and len(numbers) < len(classes):
        odd = next(column for name, column in classes.items() if name not in numbers)
        raise InputError(
            f"{path}: column {odd!r} has no class number, but {classes[numbers[0]]!r} has one; "
            "remove it or rename it"
        )
    values = {name: value for name in classes if (value := whole_number(name)) is not None}
    if not values or len(values) < len(classes):
        return classes
    _check_gaps(path, sorted(values.values()))
    return {name: classes[name] for name in sorted(classes, key=values.__getitem__)}


def _renamed(name: str) -> str:
    """Return the name before the one that pandas gives a repeated column: x, x.1, x.2."""
    original, _, number = name.rpartition(".")
    if not number.isdecimal() or number.startswith("0"):
        return ""
    return original if number == "1" else f"{original}.{int(number) - 1}"


def _check_gaps(path: Path, numbers: list[int]) -> None:
    """Refuse two columns of one number, and tell that numbered columns leave a class out."""
    for before, after in pairwise(numbers):
        if before == after:
            raise InputError(f"{path}: two columns of scores are class {before}")
    gaps = (range(before + 1, after) for before, after in pairwise(numbers))
    missing = [*islice(chain.from_iterable(gaps), NAMED)]
    if missing:
        more = numbers[-1] - numbers[0] + 1 - len(numbers) - len(missing)
        named = ", ".join(map(str, missing)) + (f" and {more:,} more" if more else "")
        note(path, f"no column of scores is class {named}; the file has {len(numbers)} classes")


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
