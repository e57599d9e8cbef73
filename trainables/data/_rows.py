"""Labelled rows, and which of them train, which choose, which judge: seeded and stratified."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

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

    def own_list(self) -> Iterator[memoryview]:
        """Yield the validation list for the hash: a row may move between the data set's lists."""
        if self.validation is not None:
            yield np.ascontiguousarray(self.validation).data

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


# One stream of random numbers a decision, so that changing one size leaves the other draws alone.
STREAMS = {"test": 0, "validation": 1, "train_limit": 2, "test_limit": 3, "long_tail": 4}
MAX_SEED = 2**63 - 1
OWN, ALL, TENTH = "own", "all", 0.1


@dataclass(frozen=True)
class SplitSpec:
    """How a data set is split. A fraction is of the rows at hand; a whole number counts rows.

    Attributes:
        validation: Share of the training rows held out for the search, fraction in (0, 1) or
            count of at least 1; ``own`` for the data set's own validation list, or a tenth where it
            has none; ``all`` for every row but those of the test, where no network is trained.
        test: The same for the test set; used only where the data set has no official one.
        train_limit: How many training rows to keep, after validation was taken; None for all.
        test_limit: How many test rows to keep; None for all.
        seed: Chooses the rows, in [0, 2^63).
        validation_seed: Chooses the validation rows in place of ``seed``; None for ``seed``.

    Raises:
        ValueError: If a value is out of its range.
    """

    validation: float | int | str = TENTH
    test: float | int = 0.25
    train_limit: int | None = None
    test_limit: int | None = None
    seed: int = 0
    validation_seed: int | None = None

    def __post_init__(self) -> None:
        if self.validation not in (OWN, ALL):
            _check_share("validation", self.validation)
        _check_share("test", self.test)
        for key in ("train_limit", "test_limit"):
            value = getattr(self, key)
            if value is not None and not (_is_whole(value) and value >= 1):
                raise ValueError(f"{key}={value!r} is not a whole number of at least 1")
        for key, seed in (("seed", self.seed), ("validation_seed", self.seed_of("validation"))):
            if not (_is_whole(seed) and 0 <= seed <= MAX_SEED):
                raise ValueError(f"{key}={seed!r} is outside [0, 2^63)")

    def seed_of(self, part: str) -> int:
        """Return the seed that chooses the rows of a part."""
        own = self.validation_seed if part == "validation" else None
        return self.seed if own is None else own

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON; one that came later only if it is set."""
        fields = asdict(self)
        if self.validation_seed is None:
            del fields["validation_seed"]
        return fields


@dataclass(frozen=True, eq=False)
class Split:
    """Sorted row numbers, int64: test rows are of the training part where there is no other."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_share(key: str, value: object) -> None:
    if value == 0 and not isinstance(value, bool):
        raise ValueError(
            f"{key}={value!r} leaves no {key} rows, which every sweep needs; give a fraction in "
            "(0, 1), such as 0.1, or a count from 1"
        )
    if _is_whole(value):
        if value < 1:  # type: ignore[operator]
            raise ValueError(f"{key}={value!r} is outside [1, inf) for a count")
    elif not (isinstance(value, float) and 0 < value < 1):
        raise ValueError(f"{key}={value!r} is neither a fraction in (0, 1) nor a count")


def shuffled(count: int, seed: int, stream: str) -> np.ndarray:
    """Return 0..count-1 in a random order that is the same on every platform and NumPy version.

    NumPy promises to keep the raw output of a bit generator, not what its distributions make of it.
    """
    raw = np.random.Philox(key=(STREAMS[stream] << 64) | seed).random_raw(count)
    return np.argsort(raw, kind="stable")


def allot(counts: np.ndarray, size: int, least: int, spare: int) -> np.ndarray:
    """Share ``size`` out over classes in proportion to their ``counts`` (K,), by largest remainder.

    Of every class that has them, at least ``least`` rows are taken and ``spare`` left; where no
    such numbers (K,) add up to ``size``, that is a ``ValueError``.
    """
    high = np.maximum(counts - spare, 0)
    low = np.minimum(least, high)
    if not low.sum() <= size <= high.sum():
        raise ValueError(f"{size} is outside [{low.sum()}, {high.sum()}]")
    quota, remainder = np.divmod(counts * size, counts.sum())
    taken = np.clip(quota, low, high)
    order = np.argsort(-remainder, kind="stable")
    while taken.sum() != size:
        step = 1 if taken.sum() < size else -1
        open_to_change = taken < high if step > 0 else taken > low
        free = [k for k in (order if step > 0 else order[::-1]) if open_to_change[k]]
        taken[free[: abs(size - taken.sum())]] += step
    return taken


def draw(
    labels: np.ndarray, size: int, seed: int, stream: str, *, least: int = 0, spare: int = 0
) -> np.ndarray:
    """Return ``size`` sorted rows of ``labels`` (N,), every class with its share; see ``allot``."""
    return take_counts(labels, allot(np.bincount(labels), size, least, spare), seed, stream)


def take_counts(labels: np.ndarray, counts: np.ndarray, seed: int, stream: str) -> np.ndarray:
    """Return sorted random rows of ``labels`` (N,), ``counts[k]`` of class k."""
    order = shuffled(len(labels), seed, stream)
    ordered = labels[order]
    rows = [order[ordered == k][:count] for k, count in enumerate(counts)]
    return np.sort(np.concatenate(rows))


def _hold_out(
    labels: np.ndarray, rows: np.ndarray, key: str, spec: SplitSpec, spare: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``rows`` without a stratified draw, and the draw; ``spare`` rows a class are left."""
    share = getattr(spec, key)
    size = share if _is_whole(share) else max(1, round(share * len(rows)))
    if size > len(rows) - spare:
        wrong = "leaves nothing of" if spare else "is more than"
        raise ValueError(
            f"{key}={share} {wrong} {len(rows)} rows; a share is split: {{{key}: 0.1}}"
        )
    try:
        held = draw(labels[rows], size, spec.seed_of(key), key, spare=spare)
    except ValueError as error:
        raise ValueError(f"{key}={share}: {error} of {len(rows)} rows") from error
    return np.delete(rows, held), rows[held]


def _limit(
    labels: np.ndarray, rows: np.ndarray, key: str, spec: SplitSpec, least: int
) -> np.ndarray:
    limit = getattr(spec, key)
    if limit is None:
        return rows
    if limit > len(rows):
        raise ValueError(f"{key}={limit} is more than the {len(rows)} rows there are")
    try:
        return rows[draw(labels[rows], limit, spec.seed, key, least=least)]
    except ValueError as error:
        raise ValueError(f"{key}={limit}: {error}") from error


def limit_rows(labels: np.ndarray, spec: SplitSpec) -> np.ndarray:
    """Return the sorted rows of other test labels (N,) that a task's limit of test images leaves.

    It is the draw that chose the task's own test images: from the same labels, the same rows.
    """
    limit = spec.test_limit
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    return draw(labels, limit, spec.seed, "test_limit")


def make_split(
    train: np.ndarray,
    test: np.ndarray | None,
    spec: SplitSpec,
    own: np.ndarray | None = None,
    trains: bool = True,
) -> Split:
    """Split by labels: ``train`` (N,) and ``test`` (M,), or None where there is no official test.

    Every class keeps its share in every part, to one row, and at least one training row where a
    network ``trains``; else all rows but those of the test may be for validation. ``own`` are the
    rows of the data set's own validation list, sorted.
    """
    rows = np.arange(len(train))
    if test is None:
        rows, judged = _hold_out(train, rows, "test", spec)
        test = train
    else:
        judged = np.arange(len(test))
    if spec.validation == ALL and not trains:
        rows, validation = rows[:0], rows
    elif spec.validation == OWN and own is not None:
        rows, validation = np.setdiff1d(rows, own), own
    else:
        share = TENTH if spec.validation in (OWN, ALL) else spec.validation
        held = replace(spec, validation=share)
        rows, validation = _hold_out(train, rows, "validation", held, spare=int(trains))
    return Split(
        train=_limit(train, rows, "train_limit", spec, least=1),
        validation=validation,
        test=_limit(test, judged, "test_limit", spec, least=0),
    )
