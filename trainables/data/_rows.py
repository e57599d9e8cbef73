"""Labelled rows, and their seeded, stratified split into training, validation and test rows."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

MAX_LABEL = 2**31 - 1
BLOCK_BYTES = 64 * 2**20


class Rows(ABC):
    """Rows with labels, in memory or in files; they are read in blocks to save memory.

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
        """Yield the bytes to hash for ``fingerprint``."""

    def own_list(self) -> Iterator[memoryview]:
        """Yield the validation list's bytes for ``content``, so that the hash depends on it."""
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
    """

    values: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        check_labels("labels", self.labels)
        if self.labels.dtype != np.int64:
            raise ValueError(f"labels: expected int64, got {self.labels.dtype}")
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
        raise ValueError(f"{name}: expected integers, got {labels.dtype} {labels.shape}")
    if labels.ndim != 1:
        raise ValueError(f"{name}: expected shape (N,), got {labels.shape}")
    for label in (labels.min(), labels.max()) if len(labels) else ():
        if not 0 <= label <= MAX_LABEL:
            raise ValueError(f"{name}: expected 0 to {MAX_LABEL}, got {label}")


def fingerprint(*parts: Rows | None) -> str:
    """Return the SHA-256 (hex) of the content of all parts, in order."""
    digest = hashlib.sha256()
    for part in parts:
        for piece in (b"absent",) if part is None else part.content():
            digest.update(piece)
    return digest.hexdigest()


# Each draw has its own stream of random numbers, so that they do not depend on other draws' sizes.
STREAMS = {"test": 0, "validation": 1, "train_limit": 2, "test_limit": 3, "long_tail": 4}
MAX_SEED = 2**63 - 1
OWN, ALL, TENTH = "own", "all", 0.1


@dataclass(frozen=True)
class SplitSpec:
    """How a data set is split.

    Attributes:
        validation: Training rows held out for the search: a fraction in (0, 1) or a count of at
            least 1; ``own`` for the data set's own validation list, or a tenth without one;
            ``all`` for every row that is not a test row if no network is trained, else a tenth.
        test: Rows held out for the test, a fraction or a count; unused with an official test set.
        train_limit: Number of training rows to keep after holding out validation; None for all.
        test_limit: Number of test rows to keep; None for all.
        seed: Seed of the draws, in [0, 2^63).
        validation_seed: Seed of the draw of validation rows; None for ``seed``.
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
        """Return the seed for drawing the rows of a part."""
        own = self.validation_seed if part == "validation" else None
        return self.seed if own is None else own

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON; leave out ``validation_seed`` if it is None."""
        fields = asdict(self)
        if self.validation_seed is None:
            del fields["validation_seed"]
        return fields


@dataclass(frozen=True, eq=False)
class Split:
    """Sorted row numbers, int64; ``test`` refers to the official test set, if there is one."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_share(key: str, value: object) -> None:
    if value == 0 and not isinstance(value, bool):
        raise ValueError(
            f"{key}={value!r} leaves no {key} rows, which every sweep needs; use a fraction in "
            "(0, 1), such as 0.1, or a count of at least 1"
        )
    if _is_whole(value):
        if value < 1:  # type: ignore[operator]
            raise ValueError(f"{key}={value!r} is outside [1, inf) for a count")
    elif not (isinstance(value, float) and 0 < value < 1):
        raise ValueError(f"{key}={value!r} is neither a fraction in (0, 1) nor a count")


def shuffled(count: int, seed: int, stream: str) -> np.ndarray:
    """Return 0..count-1 in a random order that is the same on every platform and NumPy version.

    Only raw output of a bit generator is used, because NumPy may change its distributions.
    """
    raw = np.random.Philox(key=(STREAMS[stream] << 64) | seed).random_raw(count)
    return np.argsort(raw, kind="stable")


def allot(counts: np.ndarray, size: int, least: int, spare: int) -> np.ndarray:
    """Return how many of ``size`` rows each class gives, (K,), in proportion to ``counts`` (K,).

    Fractions are rounded by largest remainder. Each class gives at least ``least`` rows and keeps
    at least ``spare``, if it has enough rows.

    Raises:
        ValueError: If no such numbers add up to ``size``.
    """
    high = np.maximum(counts - spare, 0)
    low = np.minimum(least, high)
    if not low.sum() <= size <= high.sum():
        raise ValueError(f"expected {low.sum()} to {high.sum()} rows, got {size}")
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
    """Return ``size`` sorted row numbers of ``labels`` (N,), stratified; see ``allot``."""
    return take_counts(labels, allot(np.bincount(labels), size, least, spare), seed, stream)


def take_counts(labels: np.ndarray, counts: np.ndarray, seed: int, stream: str) -> np.ndarray:
    """Return sorted random row numbers of ``labels`` (N,), ``counts[k]`` of class k."""
    order = shuffled(len(labels), seed, stream)
    ordered = labels[order]
    rows = [order[ordered == k][:count] for k, count in enumerate(counts)]
    return np.sort(np.concatenate(rows))


def _hold_out(
    labels: np.ndarray, rows: np.ndarray, key: str, spec: SplitSpec, spare: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that stay, at least ``spare`` of each class, and a stratified draw."""
    share = getattr(spec, key)
    size = share if _is_whole(share) else max(1, round(share * len(rows)))
    if size > len(rows) - spare:
        problem = "leaves nothing of" if spare else "is more than"
        raise ValueError(
            f"{key}={share} {problem} {len(rows)} rows; for a fraction use split: {{{key}: 0.1}}"
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
        raise ValueError(f"{key}={limit} is more than all {len(rows)} rows")
    try:
        return rows[draw(labels[rows], limit, spec.seed, key, least=least)]
    except ValueError as error:
        raise ValueError(f"{key}={limit}: {error}") from error


def limit_rows(labels: np.ndarray, spec: SplitSpec) -> np.ndarray:
    """Return the sorted rows of a suite with labels (N,) that a task's ``test_limit`` keeps.

    The task's own test rows are drawn in the same way, so equal labels give equal rows.
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
    """Return a split; all draws, also those for limits, are stratified by class.

    Test rows are drawn if there is no official test set. Validation rows are drawn unless
    ``spec.validation`` is ``own`` and ``own`` is given, or ``all`` and nothing is trained.

    Args:
        train: Labels of the training rows, (N,).
        test: Labels of the official test rows, (M,), or None.
        spec: How to split.
        own: Sorted rows of the data set's own validation list, or None.
        trains: Whether a network is trained, so that each class needs a training row.
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
