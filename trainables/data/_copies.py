"""Counts rows that are in two parts of a split data set."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from trainables.common.errors import InputError
from trainables.data._labels import note
from trainables.data._rows import Rows

# A quick key uses at most three pairs of eight-byte words of an array's row, so that it takes less
# than 1 % of the preparation's time. Rows with the same key are then compared by a hash of their
# whole content.
WORDS, WORD = 6, 8
LEAST = 10  # A test part with fewer different copies is never refused.
WEIGHTS = np.random.Philox(key=0).random_raw(WORDS) | np.uint64(1)


class Copies(NamedTuple):
    """Numbers of rows whose content equals that of a row in another part.

    Attributes:
        test_rows: All test rows.
        test: Test rows that equal a training row or a validation row.
        train: Test rows that equal a training row.
        validation: Test rows that equal a validation row.
        validation_rows: All validation rows.
        validation_train: Validation rows that equal a training row.
        distinct: Different contents among the rows that ``test`` counts.
    """

    test_rows: int
    test: int
    train: int
    validation: int
    validation_rows: int
    validation_train: int
    distinct: int

    def lines(self) -> list[str]:
        """Return a sentence for each kind of copies found."""
        found = []
        if self.test:
            parts = (("training", self.train), ("validation", self.validation))
            among = " or ".join(f"{part} rows ({count:,})" for part, count in parts if count)
            found.append(
                f"{self.test:,} of {self.test_rows:,} test rows are copies of {among}, so test "
                "figures may be too good"
            )
        if self.validation_train:
            found.append(
                f"{self.validation_train:,} of {self.validation_rows:,} validation rows are copies "
                "of training rows, so validation figures may be too good"
            )
        return found

    @property
    def whole(self) -> bool:
        """Return True if the whole test part was copied from training or validation rows.

        Every test row must be a copy. At least ten copies, and more than half of them, must differ
        from each other, because few rows, or rounded scores, may be equal by chance.
        """
        enough = self.distinct >= LEAST and 2 * self.distinct > self.test_rows
        return self.test == self.test_rows and enough

    def check(self, name: str) -> None:
        """Raise ``InputError`` if the whole test part was copied; see ``whole``."""
        if self.whole:
            raise InputError(
                f"dataset {name!r}: all {self.test_rows:,} test rows are copies of training or "
                "validation rows; use test rows that are in no other part, or remove the test "
                "part, so that `split.test` holds rows out"
            )

    def tell(self, name: str) -> None:
        """Note each kind of copies found."""
        for line in self.lines():
            note(name, line)


def quick_keys(rows: np.ndarray) -> np.ndarray:
    """Return a quick key, (N,) uint64, of each row (N, ...); different rows may have equal keys."""
    if rows.dtype.kind == "O":
        return np.array([hash(row) for row in rows], np.int64).view(np.uint64)
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    if flat.shape[1] < WORD:
        flat = np.pad(flat, ((0, 0), (0, WORD - flat.shape[1])))
    words = flat[:, : flat.shape[1] // WORD * WORD].view(np.uint64)
    places = np.arange(min(words.shape[1], WORDS))
    if words.shape[1] > WORDS:
        pairs = np.linspace(0, words.shape[1] - 2, WORDS // 2 + 2, dtype=int)[1:-1]
        places = np.concatenate((pairs, pairs + 1))
    keys = np.zeros(len(rows), np.uint64)
    for place, weight in zip(places, WEIGHTS, strict=False):
        keys += words[:, place] * weight
    return keys


def keyed(blocks: Iterable[np.ndarray], keys: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield blocks of rows unchanged, and append the quick keys of each block to ``keys``."""
    for block in blocks:
        keys.append(quick_keys(block))
        yield block


def count_copies(
    parts: Mapping[str, Rows], quick: Mapping[str, list[np.ndarray]] | None = None
) -> Copies:
    """Count the copies among the parts ``train``, ``validation`` and ``test``.

    Args:
        parts: The rows of each part.
        quick: The quick keys of each part, block by block; None to compute them.
    """
    blocks = quick or {name: [*map(quick_keys, rows.blocks())] for name, rows in parts.items()}
    keys = {name: np.concatenate([np.empty(0, np.uint64), *blocks[name]]) for name in parts}
    ordered = np.sort(np.concatenate([*keys.values()]))
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    suspects = {name: np.flatnonzero(np.isin(own, twice)) for name, own in keys.items()}
    train, validation, test = (
        _hashes(parts[name], suspects[name]) for name in ("train", "validation", "test")
    )
    seen = {*train, *validation}
    return Copies(
        test_rows=len(parts["test"]),
        test=_among(test, seen),
        train=_among(test, {*train}),
        validation=_among(test, {*validation}),
        validation_rows=len(parts["validation"]),
        validation_train=_among(validation, {*train}),
        distinct=len({*test} & seen),
    )


def _hashes(rows: Rows, numbers: np.ndarray) -> list[bytes]:
    blocks = rows.take(numbers).blocks() if len(numbers) else ()
    return [blake2b(_content(row), digest_size=16).digest() for block in blocks for row in block]


def _content(row: Any) -> bytes:
    if isinstance(row, bytes):
        return row
    return row.encode() if isinstance(row, str) else row.tobytes()


def _among(hashes: list[bytes], others: set[bytes]) -> int:
    return sum(each in others for each in hashes)
