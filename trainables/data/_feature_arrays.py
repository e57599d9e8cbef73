"""Files that hold cached features and labels, as arrays by name."""

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
# Each word that an array's name is made of, and the word that we look for.
WORDS = {
    **{word: plain for word, plain in SCORE_WORDS.items() if plain in LABELS},
    **dict.fromkeys(("features", "feature", "feats", "embeddings", "embedding", "x"), "features"),
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    "test": "test",
    **{word: word for word in ("class", "logit", "scale")},
}
WHOLE = ("class_features", "logit_scale")  # Arrays that have no part.
COLUMN = re.compile(r"(features?|feats?|embeddings?|f|x)_?\d+", re.IGNORECASE)
SPLIT = "split"


def feature_files(path: Path) -> ArrayFiles:
    """Return the files ``.npy`` of a folder, or those that belong to one, memory-mapped."""
    if path.is_dir():
        found = sorted(path.glob("*.npy"))
        if not found:
            raise InputError(f"{path}: no .npy files in it; put features.npy and labels.npy there")
        path = found[0]
    return ArrayFiles(path, WORDS, FEATURES, mapped=True)


def known_names(arrays: NamedArrays) -> dict[str, str]:
    """Return the names of arrays by ours; ``features`` and ``labels`` alone are training rows."""
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
            raise InputError(f"{arrays.path}: {both} mean the same; keep one of them")
        found[plain] = given
    return found


class FeatureTable:
    """A table of rows with a label and features, as arrays by name.

    Features are a column ``features`` of lists (Parquet), or columns such as ``feature_0``. A
    column ``split`` says of each row whether it is for ``train``, ``validation`` or ``test``.
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
                f"{path}: no columns of features; name them feature_0, feature_1 and so on, or in "
                "Parquet one column of lists `features`"
            )
        self._features.sort(key=lambda name: int(re.sub(r"\D", "", name) or 0))
        self._lists, self._split = bool(lists), SPLIT in columns

    @property
    def names(self) -> list[str]:
        """Return names such as ``features_train``, of the parts that there are."""
        return [f"{kind}{part}" for part in self._parts for kind in ("features", "labels")]

    def read(self, name: str) -> np.ndarray:
        """Return features (N, D) or labels (N,) of a part."""
        kind, _, part = name.partition("_")
        rows = self._parts[f"_{part}" if part else ""]
        return (self._values if kind == "features" else self._labels)[rows]

    def _only(self, columns: list[str], what: str) -> str:
        if len(columns) != 1:
            told = f"{'several' if columns else 'no'} columns of {what}"
            raise InputError(f"{self.path}: {told}; name one column label")
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
