"""Named arrays of scores and labels in ``.npy`` files, tables and HDF5 files."""

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

# The plain word for each word in names of arrays.
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
NAMED = 5  # Maximum number of missing classes that a note names.
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
COLUMN = re.compile(r"(?P<kind>logits?|probs?)_(?P<name>.+)", re.IGNORECASE)
# Endings of columns that are a statistic of the row, such as logit_max.
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
    """Return an array's plain name, such as ``labels_fit`` for ``y_val``."""
    return "_".join(words.get(word, word) for word in name.split("_"))


class ArrayFiles:
    """The ``.npy`` files of a folder that belong together, such as ``a_logits`` and ``a_labels``.

    Args:
        path: One of the files.
        words: The words that name arrays; see ``WORDS``.
        wanted: The plain words for arrays of values; one such array is required.
        mapped: Whether arrays are memory-mapped.

    Attributes:
        path: The first file of values.
        name: The common part of the files' names, or else the folder's name.
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
                    raise InputError(f"{known} and {file} have the same role; remove one")
        values = [file for array, file in self._files.items() if {*array.split("_")} & {*wanted}]
        if not values:
            kind, hint = wanted[0], " (probs for probabilities)" if "probs" in wanted else ""
            raise InputError(
                f"{path}: neither this file nor its folder has {'scores' if hint else kind}; name "
                f"the files {kind}.npy and labels.npy, or NAME_{kind}.npy and "
                f"NAME_labels.npy{hint}"
            )
        self.path = values[0]

    @property
    def names(self) -> list[str]:
        """Return the names of the arrays, such as ``logits_fit``."""
        return list(self._files)

    @property
    def files(self) -> list[Path]:
        return list(self._files.values())

    def read(self, name: str) -> np.ndarray:
        return read_array(self._files[name], self._mapped)


def _taken_apart(path: Path, known: Mapping[str, str]) -> tuple[str, str]:
    """Return a name and an array's plain name, from the words of a file's name.

    The name has the words that are not in ``known``; without such words it is the folder's.
    """
    words = re.split(r"[_.-]", path.stem)
    array = "_".join(known[word] for word in words if word in known)
    return "_".join(word for word in words if word not in known) or path.parent.name, array


class ScoreTable:
    """A table with a label and one score per class, read as named arrays.

    ``kind`` selects the scores if a table has both logits and probabilities.
    """

    def __init__(self, path: Path, kind: str | None = None) -> None:
        self.path = path
        columns = column_names(path)
        meaning = {name: plain_name(name.lower()) for name in columns}
        labels = [name for name in columns if meaning[name] == "labels"]
        if len(labels) != 1:
            found = f"{path}: {'several' if labels else 'no'} columns of labels"
            raise InputError(f"{found} ({_shown(columns)}); name one column `label`")
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
                f"{self.path}: column {self._columns[odd]!r} has the name of a statistic, not of a "
                "class; remove it or rename it"
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
    """Return the kind of each column of scores, by its name; all have the same kind.

    Columns of scores are named ``logit_CLASS`` or ``prob_CLASS`` (others are ignored). Or all
    columns are named by class numbers; the kind is then ``predictions`` (logits or probabilities).
    Or a column ``logits``, ``probs`` or ``predictions`` has a list per row (Parquet); the first two
    are preferred to columns per class.
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
            "prob_CLASS, one per class, such as logit_0, logit_1"
        )
    if kind in scores.values():
        return {name: each for name, each in scores.items() if each == kind}
    if len({*scores.values()}) > 1:
        first = {each: name for name, each in reversed(scores.items())}
        found = " and ".join(f"{each} ({name!r})" for each, name in sorted(first.items()))
        raise InputError(
            f"{path}: has columns of {found}; remove one kind, or add --kind logits or "
            "--kind probs (in a sweep file's task: `inputs: {kind: logits}`)"
        )
    return scores


def _class_columns(path: Path, columns: list[str]) -> dict[str, str]:
    """Return the column of each class, by class name; sorted if all names are whole numbers."""
    classes: dict[str, str] = {}
    for column in columns:
        found = COLUMN.fullmatch(column)
        name = found["name"] if found else column
        twin = name if name in classes else _renamed(name)
        if twin in classes:
            raise InputError(
                f"{path}: columns {classes[twin]!r} and {column!r} are for the same class; "
                "remove one"
            )
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
    """Return x for x.1 and x.1 for x.2, as pandas names repeated columns; "" for other names."""
    original, _, number = name.rpartition(".")
    if not number.isdecimal() or number.startswith("0"):
        return ""
    return original if number == "1" else f"{original}.{int(number) - 1}"


def _check_gaps(path: Path, numbers: list[int]) -> None:
    """Refuse two columns with the same number, and note missing numbers."""
    for before, after in pairwise(numbers):
        if before == after:
            raise InputError(f"{path}: two columns of scores are for class {before}; remove one")
    gaps = (range(before + 1, after) for before, after in pairwise(numbers))
    missing = [*islice(chain.from_iterable(gaps), NAMED)]
    if missing:
        more = numbers[-1] - numbers[0] + 1 - len(numbers) - len(missing)
        named = ", ".join(map(str, missing)) + (f" and {more:,} more" if more else "")
        note(path, f"no column of scores is for class {named}; the file has {len(numbers)} classes")


def _shown(columns: list[str]) -> str:
    return f"it has {', '.join(map(repr, columns[:6]))}{', ...' if len(columns) > 6 else ''}"


def split_address(address: str | Path) -> tuple[Path, str]:
    """Split ``FILE.h5:dataset/model`` into the path and ``dataset/model``.

    The second part is "" for HDF5 files without it and for all other files.
    """
    text = os.path.expanduser(address)
    found = ADDRESS.fullmatch(text)
    return (Path(found["path"]), found["name"].strip("/")) if found else (Path(text), "")


def find_sets(path: Path) -> list[str]:
    """Return the names ``dataset/model`` of an HDF5 file's sets, in the file's order."""
    with _opened(path) as file:
        names = [
            f"{dataset}/{model}"
            for dataset in file
            for model in (_group(file, dataset) or ())
            if _group(file, f"{dataset}/{model}")
        ]
    if not names:
        raise InputError(f"{path}: no group DATASET/MODEL, as in files of CalArena")
    return names


def read_set(path: Path, name: str) -> tuple[str, dict[str, np.ndarray]]:
    """Return a set's name and its ``ARRAYS``; a file with one set needs no name."""
    if not name:
        names = find_sets(path)
        if len(names) > 1:
            raise InputError(
                f"{path}: has {len(names)} sets; add a name after a colon, such as PATH:{names[0]}"
            )
        (name,) = names
    with _opened(path) as file:
        group = _group(file, name)
        if group is None:
            raise InputError(f"{path}: no set {name!r}; sets are {', '.join(find_sets(path))}")
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
    # Errors of h5py on damaged files.
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as HDF5 ({error})") from error


def _member(group: Any, name: str) -> Any:
    """Return a member that is stored in the same file, or None."""
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
            f"{path}: {group.name} has no array {name!r}; expected {', '.join(ARRAYS)}"
        )
    return np.asarray(found[()])
