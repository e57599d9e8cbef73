"""Vectors of words, read from text files such as GloVe's."""

import base64
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainables.common.errors import InputError


def read_vectors(path: Path, words: Sequence[str]) -> np.ndarray:
    """Return the vectors of words, (len(words), D), float32; zeros for those that have none.

    A line of the file is a word and the D numbers of its vector, separated by single spaces, as in
    Pennington et al. (2014).
    """
    rows = {word: row for row, word in enumerate(words)}
    found: dict[int, np.ndarray] = {}
    try:
        with path.open(encoding="utf-8") as stream:
            width = stream.readline().count(" ")
            stream.seek(0)
            for number, line in enumerate(stream, 1):
                word, *values = line.rstrip().rsplit(" ", width)
                if len(values) != width or not width:
                    raise InputError(f"{path}, line {number}: needed is a word and its vector")
                if word in rows:
                    found[rows[word]] = _vector(values, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not found:
        raise InputError(f"{path} has a vector of none of the {len(words)} words of the texts")
    vectors = np.zeros((len(words), width), np.float32)
    for row, vector in found.items():
        vectors[row] = vector
    return vectors


def _vector(values: list[str], place: str) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from error
    if not np.isfinite(vector).all():
        raise InputError(f"{place}: a value is not finite")
    return vector


def packed(vectors: np.ndarray) -> str:
    """Return vectors (N, D) as a text that JSON can hold."""
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode()


def unpacked(text: str, count: int) -> np.ndarray:
    """Return the vectors (count, D), float32, that ``packed`` made a text of."""
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(count, -1).astype(np.float32)
