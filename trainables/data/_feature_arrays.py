"""Cached features and labels in files, read as named arrays."""

import re
from functools import cached_property
from pathlib import Path

import numpy as np

from trainables.common.errors import InputError
from trainables.data._logit_arrays import WORDS as SCORE_WORDS
from trainables.data._logit_arrays import ArrayFiles, NamedArrays, plain_name
from trainables.data._tables import column_names, read_columns

FEATURES = ("features",)
LABELS = ("labels", "classes")
# The plain word for each word in names of arrays.
WORDS = {
    **{word: plain for word, plain in SCORE_WORDS.items() if plain in LABELS},
    **dict.fromkeys(("features", "feature", "feats", "embeddings", "embedding", "x"), "features"),
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    "test": "test",
    **{word: word for word in ("class", "logit", "scale")},
}
WHOLE = ("class_features", "logit_scale")  # Arrays without parts, besides `classes`.
COLUMN = re.compile(r"(features?|feats?|embeddings?|f|x)_?\d+", re.IGNORECASE)
SPLIT = "split"


def feature_files(path: Path) -> ArrayFiles:
    """Return ``.npy`` files that belong together, memory-mapped; see ``ArrayFiles``.

    ``path`` is one of the files, or a folder, whose first file is then used.
    """
    if path.is_dir():
        require_complete(path)
        found = sorted(path.glob("*.npy"))
        if not found:
            raise InputError(f"{path}: no .npy files; put features.npy and labels.npy there")
        path = found[0]
    return ArrayFiles(path, WORDS, FEATURES, mapped=True)


def require_complete(folder: Path) -> None:
    """Raise ``InputError`` if ``extract_features`` was interrupted in this folder."""
    if folder.is_dir() and any(folder.glob("*.npy.part")):
        raise InputError(
            f"{folder}: the features are incomplete; repeat `calsweep features extract` to "
            "complete them"
        )


def known_names(arrays: NamedArrays) -> dict[str, str]:
    """Return the names of the arrays in the file, by their plain names, such as ``labels_train``.

    Arrays other than features, labels, ``classes`` and ``WHOLE`` are left out. An array of features
    or labels whose name has no part has training rows.

    Raises:
        InputError: If two arrays have the same plain name.
    """
    found: dict[str, str] = {}
    for given in arrays.names:
        plain = plain_name(given.lower(), WORDS)
        words = plain.split("_")
        kind = next((word for word in words if word in (*FEATURES, *LABELS)), None)
        parts = [word for word in words if word in ("train", "validation", "test")]
        if plain not in WHOLE:
            if kind is None or len(words) != 1 + len(parts) or len(parts) > 1:
                continue
            plain = kind if kind == "classes" else f"{kind}_{parts[0] if parts else 'train'}"
        if plain in found:
            both = f"{found[plain]!r} and {given!r}"
            raise InputError(f"{arrays.path}: arrays {both} have the same role; remove one")
        found[plain] = given
    return found


class FeatureTable:
    """A table with a label and features per row, read as named arrays.

    Features are a column ``features`` of lists (Parquet), or columns such as ``feature_0``. An
    optional column ``split`` has ``train``, ``validation`` or ``test`` for each row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        columns = column_names(path)
        meaning = {name: WORDS.get(name.lower(), "") for name in columns}
        self._label = self._only([n for n in columns if meaning[n] == "labels"], "labels")
        lists = [n for n in columns if meaning[n] == "features"]
        self._features = lists or [name for name in columns if COLUMN.fullmatch(name)]
        if not self._features or len(lists) > 1 or (lists and path.suffix != ".parquet"):
            raise InputError(
                f"{path}: no columns of features; name them feature_0, feature_1 and so on, or use "
                "one column of lists `features` in Parquet"
            )
        self._features.sort(key=lambda name: int(re.sub(r"\D", "", name) or 0))
        self._lists, self._split = bool(lists), SPLIT in columns

    @property
    def names(self) -> list[str]:
        """Return the names of arrays, such as ``features_train``."""
        return [f"{kind}{part}" for part in self._parts for kind in ("features", "labels")]

    def read(self, name: str) -> np.ndarray:
        """Return features (N, D) or labels (N,) of a part."""
        kind, _, part = name.partition("_")
        rows = self._parts[f"_{part}" if part else ""]
        return (self._values if kind == "features" else self._labels)[rows]

    def _only(self, columns: list[str], noun: str) -> str:
        if len(columns) != 1:
            problem = f"{'several' if columns else 'no'} columns of {noun}"
            raise InputError(f"{self.path}: {problem}; name one column `label`")
        return columns[0]

    @cached_property
    def _parts(self) -> dict[str, slice | np.ndarray]:
        if not self._split:
            return {"": slice(None)}
        given = read_columns(self.path, [SPLIT])[SPLIT]
        parts = np.array([WORDS.get(str(word).lower(), "") for word in given])
        wrong = np.flatnonzero(~np.isin(parts, ("train", "validation", "test")))
        if len(wrong):
            raise InputError(
                f"{self.path}: column 'split': {given[wrong[0]]!r} in row {wrong[0]}; expected "
                "train, validation or test"
            )
        return {f"_{part}": parts == part for part in dict.fromkeys(parts.tolist())}

    @cached_property
    def _labels(self) -> np.ndarray:
        return read_columns(self.path, [self._label])[self._label]

    @cached_property
    def _values(self) -> np.ndarray:
        if self._lists:
            return read_columns(self.path, self._features)[self._features[0]]
        found = read_columns(self.path, (), self._features)
        return np.stack([found[name] for name in self._features], axis=1)
