"""Labelled rows, in memory or still in their files, and figures computed from them."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

MAX_LABEL = 2**31 - 1
BLOCK_BYTES = 64 * 2**20


class Rows(ABC):
    """Rows with labels, in memory or still in their files; read in blocks, so of any number.

    One that cannot be read is an ``InputError``.

    Attributes:
        labels: (N,), int64, every entry at least 0.
        validation: Rows of the data set's own validation list, sorted, (V,); None if it has none.
    """

    labels: np.ndarray
    validation: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def dtype(self) -> np.dtype:
        """Return the type of the values, as stored."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one row's values, as stored."""

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the arrays in memory."""
        return (self.labels,)

    @abstractmethod
    def take(self, indices: np.ndarray) -> Self:
        """Return the rows ``indices`` (M,), in that order."""

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the values of the rows from ``start`` to before ``stop``, (M, *shape)."""

    @abstractmethod
    def content(self) -> Iterator[bytes | memoryview]:
        """Yield all that a hash of the rows is made of."""

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all values in order, (M, *shape), about 64 MiB at a time."""
        step = max(1, BLOCK_BYTES // (int(np.prod(self.shape)) * self.dtype.itemsize))
        for start in range(0, len(self), step):
            yield self.read(start, min(start + step, len(self)))


@dataclass(frozen=True, eq=False)
class RowArrays(Rows):
    """Labelled rows in memory.

    Attributes:
        values: (N, ...); may be memory-mapped.
        labels: (N,), int64, every entry at least 0.

    Raises:
        ValueError: If the labels differ from that, or the lengths differ.
    """

    values: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        check_labels("labels", self.labels)
        if self.labels.dtype != np.int64:
            raise ValueError(f"labels is {self.labels.dtype}, allowed is int64")
        if len(self.values) != len(self.labels):
            raise ValueError(f"{len(self.values)} rows but {len(self.labels)} labels")

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape[1:]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.values, self.labels

    def take(self, indices: np.ndarray) -> Self:
        """Return a copy of the rows ``indices`` (M,), in that order."""
        return replace(self, values=self.values[indices], labels=self.labels[indices])

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.values[start:stop]

    def content(self) -> Iterator[bytes | memoryview]:
        for array in self.arrays:
            yield f"{array.dtype.str}{array.shape}".encode()
            yield np.ascontiguousarray(array).data


def check_labels(name: str, labels: np.ndarray) -> None:
    """Raise ``ValueError`` unless ``labels`` is (N,), of an integer type and within 0..2^31-1."""
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{name} is {labels.dtype} {labels.shape}, allowed are integers")
    if labels.ndim != 1:
        raise ValueError(f"{name} has shape {labels.shape}, allowed is (N,)")
    for label in (labels.min(), labels.max()) if len(labels) else ():
        if not 0 <= label <= MAX_LABEL:
            raise ValueError(f"{name} holds {label}, allowed is 0 to {MAX_LABEL}")


def fingerprint(*parts: Rows | None) -> str:
    """Return the SHA-256 (hex) of the content of all parts, in order."""
    digest = hashlib.sha256()
    for part in parts:
        for piece in (b"absent",) if part is None else part.content():
            digest.update(piece)
    return digest.hexdigest()
