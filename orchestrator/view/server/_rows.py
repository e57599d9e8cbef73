"""The test rows of a table's cell: their predictions and bins, filtered and sorted."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from cachetools import LRUCache, cachedmethod
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from orchestrator.storage.storage import Storage
from trainables.common.errors import InputError
from trainables.common.files import open_inside
from trainables.common.stages import ArtifactRef
from trainables.metrics import ReliabilityCurve, bin_table, predicted_rows

BINS = 15  # As in the test metrics of every evaluation.
BLOCK = 1 << 20  # Probabilities per read of a thread.
THREADS = min(4, os.cpu_count() or 1)
KEPT = 1 << 26  # Bytes of the cache: a cell of a million rows and 10 classes has 11 MB.
SHOWS = ("all", "right", "wrong", "over", "under")
SORTS = ("row", "confidence", "disagreement")


@dataclass(frozen=True, eq=False)
class CellRows:
    """The test rows of one recipe and seed; each array has the shape (N,).

    Attributes:
        predicted: The classes with the largest score.
        confidence: The probability of the predicted class, float32.
        true: The probability of the label, float32.
        bins: The bin of ECE, from 0.
        numbers: Number of each row in the file of logits; None for other data, whose rows are
            numbered by their position in these arrays.
        images: Image of each row if rows are pixels, else None.
        curve: Count, confidence and accuracy of each bin, from float64 confidences.
        classes: Number of classes; for a ``.calsweep`` file, of those up to the largest in
            ``labels`` and ``predicted``.
    """

    labels: NDArray[Any]
    predicted: NDArray[Any]
    confidence: NDArray[np.float32]
    true: NDArray[np.float32]
    bins: NDArray[np.uint8]
    numbers: NDArray[np.int64] | None
    images: NDArray[np.int64] | None
    curve: ReliabilityCurve
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Return the size in memory."""
        arrays = (getattr(self, each.name) for each in fields(self))
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    @property
    def right(self) -> NDArray[np.bool_]:
        """Return whether each prediction is right, (N,)."""
        return np.asarray(self.predicted == self.labels)

    def same_rows(self, other: "CellRows") -> bool:
        """Return whether another cell has the same labels and, if both have them, row numbers."""
        alike = np.array_equal(self.labels, other.labels)
        if alike and self.numbers is not None and other.numbers is not None:
            return np.array_equal(self.numbers, other.numbers)
        return alike

    def at(self, place: int) -> "RowScores":
        """Return the row at a position in these arrays."""
        label, predicted, in_bin = (int(v[place]) for v in (self.labels, self.predicted, self.bins))
        confidence, true = float(self.confidence[place]), float(self.true[place])
        number = place if self.numbers is None else int(self.numbers[place])
        image = None if self.images is None else int(self.images[place])
        return RowScores(label, predicted, confidence, true, in_bin, number, image)

    def chosen(
        self, show: str = "all", in_bin: int | None = None, label: int | None = None
    ) -> NDArray[np.int64]:
        """Return the positions of the rows that pass a filter, ascending.

        ``over`` are wrong rows in bins whose confidence exceeds their accuracy; ``under`` are right
        rows in bins whose accuracy exceeds their confidence.
        """
        mask = np.ones(len(self), bool) if show == "all" else self._shown(show)
        if in_bin is not None:
            mask &= self.bins == in_bin
        if label is not None:
            mask &= self.labels == label
        return np.flatnonzero(mask)

    def _shown(self, show: str) -> NDArray[np.bool_]:
        mask = self.right if show in ("right", "under") else ~self.right
        if show == "over":
            mask &= (self.curve.confidence > self.curve.accuracy)[self.bins]
        if show == "under":
            mask &= (self.curve.confidence < self.curve.accuracy)[self.bins]
        return mask


class RowScores(NamedTuple):
    """One row of one recipe and seed, see ``CellRows``; ``number`` is the row's number in URLs."""

    label: int
    predicted: int
    confidence: float
    true: float
    bin: int
    number: int
    image: int | None


def largest_first(
    places: NDArray[np.int64], values: NDArray[np.float32], start: int, stop: int
) -> NDArray[np.int64]:
    """Sort positions of rows by their values, largest first, and return the slice ``start:stop``.

    ``values`` (N,) of all N rows must not be negative. Rows with equal values keep their order, so
    that pages never overlap.
    """
    # The bits of non-negative floats sort like the floats, and integers sort fastest.
    keys = values[places].view(np.uint32).astype(np.uint64) << np.uint64(32)
    keys |= (len(values) - 1 - places).astype(np.uint64)
    keys.sort()
    found = keys[::-1][start:stop] & np.uint64(0xFFFFFFFF)
    return len(values) - 1 - found.astype(np.int64)


class DamagedError(InputError):
    """A file of stored predictions is damaged."""


class RowBook:
    """Test predictions of a storage by key, with a cache.

    No file outside the storage is read. Missing predictions of a storage in a bucket are fetched.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._store, self._folder = storage, storage.store(), storage.folder
        self._kept: LRUCache[str, CellRows] = LRUCache(KEPT, attrgetter("nbytes"))
        self._lock = RLock()

    def read(self, key: str) -> CellRows:
        """Return the rows of an evaluation.

        Raises:
            FileNotFoundError: If the storage does not have them.
        """
        with self._lock:  # Two reads at once would need twice the memory.
            return self._read(key)

    @cachedmethod(attrgetter("_kept"))
    def _read(self, key: str) -> CellRows:
        if (packed := self._storage.packed_rows(key)) is not None:
            return _rows_of_columns(packed)
        with self._readable(key) as path:
            return _rows_in(path)

    def row(self, key: str, number: int) -> RowScores | None:
        """Return the row ``number`` of an evaluation, None if absent.

        Raises:
            FileNotFoundError: If the storage does not have the evaluation.
        """
        if self._storage.lacks:
            packed = self._storage.packed_row(key, number)
            return _rows_of_columns(packed).at(0)._replace(number=number) if packed else None
        with self._readable(key) as path:
            return _row_in(path, number)

    def maps(self, key: str) -> dict[str, NDArray[np.uint8]]:
        """Return the stored maps of an evaluation of pixels; see ``shown_maps``.

        If there are none, only an empty array ``rows`` is returned.
        """
        try:
            with self._readable(key, "maps") as path:
                return dict(load_file(path))
        except FileNotFoundError:
            return {"rows": np.empty((0, 1, 1, 4), np.uint8)}

    @contextmanager
    def _readable(self, key: str, file: str = "test") -> Iterator[Path]:
        path = self._store.path(ArtifactRef("evaluate", key))
        self._store.fetch_folder(path)
        path = path / f"{file}.safetensors"
        try:
            open_inside(path, self._folder).close()
            yield path.resolve()
        except PermissionError as error:
            raise InputError(f"{path} was not read: it {error.strerror}") from error
        except (SafetensorError, LookupError, ValueError) as error:
            raise DamagedError(f"{path} is damaged: {error}") from error


def _rows_in(path: Path) -> CellRows:
    """Return all rows of an evaluation."""
    with safe_open(path, "np") as tensors:
        return _rows_of(tensors, 0, tensors.get_slice("labels").get_shape()[0])


def _row_in(path: Path, number: int) -> RowScores | None:
    """Return the row ``number`` of an evaluation, None if absent."""
    with safe_open(path, "np") as tensors:
        place = _place(tensors, number)
        if place is None:
            return None
        return _rows_of(tensors, place, place + 1).at(0)._replace(number=number)


def _place(tensors: Any, number: int) -> int | None:
    """Return the position of the row ``number``, None if absent."""
    if "rows" not in list(tensors.keys()):
        return number if number < tensors.get_slice("labels").get_shape()[0] else None
    return next(iter(np.flatnonzero(tensors.get_tensor("rows") == number).tolist()), None)


def _rows_of(tensors: Any, start: int, stop: int) -> CellRows:
    """Return some rows of an evaluation, read in blocks."""
    table, labels = (tensors.get_slice(name) for name in ("log_probs", "labels"))
    names, classes = list(tensors.keys()), table.get_shape()[1]
    step = max(1, BLOCK // classes)
    blocks = (slice(first, min(first + step, stop)) for first in range(start, stop, step))
    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(lambda block: _scored(table[block], labels[block]), blocks))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    numbers, images = (
        tensors.get_slice(name)[start:stop] if name in names else None
        for name in ("rows", "images")
    )
    curve = _curve(joined.pop("sums"))
    return CellRows(**joined, numbers=numbers, images=images, curve=curve, classes=classes)


def _rows_of_columns(columns: Mapping[str, NDArray[Any]]) -> CellRows:
    """Return the rows of a ``.calsweep`` file."""
    labels, predicted, bins, confidence = (
        columns[name] for name in ("label", "prediction", "bin", "confidence")
    )
    sums = bin_table(bins, confidence, labels == predicted, BINS)
    classes = 1 + int(max(labels.max(), predicted.max()))
    small = np.min_scalar_type(classes)
    return CellRows(
        labels.astype(small),
        predicted.astype(small),
        confidence,
        columns["confidence_in_label"],
        bins,
        numbers=columns.get("row"),
        images=None,
        curve=_curve(sums[None]),
        classes=classes,
    )


def _scored(table: NDArray[Any], labels: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return arrays of ``CellRows`` for some rows, and ``sums`` of their bins, (1, 3, BINS)."""
    found = predicted_rows(table, labels, BINS)
    small = np.min_scalar_type(table.shape[1])
    return {
        **found._asdict(),
        "labels": labels.astype(small),
        "predicted": found.predicted.astype(small),
        "sums": found.sums[None],
    }


def _curve(sums: NDArray[np.float64]) -> ReliabilityCurve:
    count, confidence, right = sums.sum(0)
    filled = np.where(count > 0, count, np.nan)
    edges = np.arange(BINS + 1) / BINS  # Exactly equal to ``width_edges``.
    return ReliabilityCurve(edges, confidence / filled, right / filled, count.astype(np.int64))
