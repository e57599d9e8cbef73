"""Rows of logits and labels: checks of users' arrays, masked classes, and blocks of rows."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch

ROWS_AT_ONCE = 4096
# A masked logit is at least this far below its row's largest one. It is half the depth of -1e4, the
# weakest common mask; others are -65504, -1e9, the smallest float32 and -inf.
MASK_DEPTH = 5000.0
MASKED = 1e7  # Calibrators see every masked logit this far below its row's largest one.
# The typical logit is the median of the absolute row maxima. If it is above LARGEST, logits are
# divided so that it is about USUAL. A masked logit is below its row's largest by more than DEEPER
# times the typical logit.
LARGEST, USUAL, DEEPER = 1e4, 32.0, 32.0
# Temporaries of this many values fit a core's cache; a GPU needs larger ones.
BLOCK_VALUES = {"cpu": 1 << 16, "cuda": 1 << 22}


def row_blocks(rows: Tensor, least: int = 1) -> list[slice]:
    """Return slices that divide rows (N, K) into blocks, so that temporaries fit into the cache.

    Each block except the last has at least ``least`` rows.
    """
    values = BLOCK_VALUES.get(rows.device.type, BLOCK_VALUES["cpu"])
    step = max(least, values // rows.shape[1])
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def as_tensor(values: Any, name: str) -> Tensor:
    """Return real numbers as a tensor, or raise ``InputError``; ``name`` is for the message.

    An array is copied only if it is read-only, not contiguous or of a type that PyTorch lacks.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach()
    else:
        values = np.asarray(values)
        if values.dtype.kind not in "biuf":
            raise InputError(f"{name}: expected real numbers, got {values.dtype}")
        native = np.float64 if values.dtype.itemsize > 8 else values.dtype.newbyteorder("=")
        values = np.require(values, native, ["C", "W"])
        # NumPy regards a single reversed row as contiguous, but PyTorch refuses negative strides.
        values = torch.from_numpy(values.copy() if min(values.strides, default=0) < 0 else values)
    if values.is_complex():
        raise InputError(f"{name}: expected real numbers, got {values.dtype}")
    return values


def check_logits(logits: Any) -> Tensor:
    """Return logits (N, K) as float32 or float64 on their device, or raise ``InputError``."""
    values = as_tensor(logits, "logits")
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise InputError(
            f"logits: expected shape (N, K), N >= 1 and K >= 2, got {tuple(values.shape)}"
        )
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    parts = row_blocks(values, ROWS_AT_ONCE)
    # A row's maximum is NaN or inf if a value is, and -inf if every class is masked.
    if not bool(torch.stack([values[part].amax(1).isfinite().all() for part in parts]).all()):
        _refuse(values)
    return values


def _refuse(values: Tensor) -> None:
    wrong = ~(values.isfinite() | values.isneginf())
    if not bool(wrong.any()):
        row = int(values.amax(1).isneginf().nonzero()[0])
        raise InputError(f"logits: row {row} has -inf for every class; remove such rows")
    row, column = map(int, wrong.nonzero()[0])
    raise InputError(
        f"logits: expected finite values, or -inf for masked classes, got "
        f"{float(values[row, column])} in row {row}, class {column} ({int(wrong.sum())} such "
        "values)"
    )


@dataclass(frozen=True)
class LogitScale:
    """The size of logits, which separates masked logits from large ones.

    A class is masked in a row if its logit is -inf, or if it is below the row's largest by more
    than 5,000 and by more than 32 times the typical logit. A masked class is impossible: fits,
    smoothing and penalties ignore it.

    Attributes:
        typical: The median of the absolute row maxima, which masks do not change; 0 if the logits
            of each row differ by at most 5,000, so that none is masked.
    """

    typical: float = 0.0

    @classmethod
    def of(cls, logits: Tensor) -> Self:
        """Return the scale of logits (N, K)."""
        if not _wide(logits, MASK_DEPTH):
            return cls()
        return cls(float(logits.amax(1).double().abs().median()))

    @property
    def unit(self) -> float:
        """Return the power of two by which logits are divided; 1 unless they are huge."""
        return 1.0 if self.typical <= LARGEST else 2.0 ** math.ceil(math.log2(self.typical / USUAL))

    @property
    def depth(self) -> float:
        """A logit is masked if it is more than this below its row's largest one."""
        return max(MASK_DEPTH, DEEPER * self.typical)

    def level(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits (N, K) divided by ``unit``, and a boolean mask (N, K) of the masked ones.

        Masked logits become the row's largest one minus ``MASKED``. The mask is None if none is
        masked.
        """
        masked = find_masked(logits, self.depth)
        rows = logits if self.unit == 1 else logits / self.unit
        if masked is not None:
            rows = torch.where(masked, rows.amax(1, keepdim=True) - MASKED, rows)
        return rows, masked


def find_masked(logits: Tensor, depth: float = MASKED / 2) -> Tensor | None:
    """Return a boolean mask (N, K) of the masked logits (N, K), or None if there are none.

    A logit is masked if it is more than ``depth`` below the row's largest one. The default is for
    logits that ``LogitScale.level`` returned.
    """
    if not _wide(logits, depth):
        return None
    return torch.cat([masked_classes(logits[p], depth) for p in row_blocks(logits, ROWS_AT_ONCE)])


def masked_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the indices (M,) of the rows (N, K) whose label (N,) is a masked class."""
    gaps = logits.amax(1) - logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    return (gaps > LogitScale.of(logits).depth).nonzero().squeeze(1)


def masked_classes(logits: Tensor, depth: float = MASK_DEPTH) -> Tensor:
    """Return a boolean mask (N, K) of the logits more than ``depth`` below the row's largest one.

    In contrast to ``find_masked``, the host does not wait for a GPU.
    """
    return logits.amax(1, keepdim=True) - logits > depth


def _wide(logits: Tensor, depth: float) -> bool:
    parts = (logits[part].aminmax(dim=1) for part in row_blocks(logits, ROWS_AT_ONCE))
    return bool(torch.stack([(high - low > depth).any() for low, high in parts]).any())


def raise_masked(logits: Tensor, masked: Tensor | None) -> Tensor:
    """Return logits (N, K), where masked ones have the value of the row's smallest unmasked one."""
    if masked is None:
        return logits
    lowest = logits.masked_fill(masked, math.inf).amin(1, keepdim=True)
    return torch.where(masked, lowest, logits)


def mean_allowed(values: Tensor, masked: Tensor | None, dim: int = 1) -> Tensor:
    """Return the mean of values along a dimension, over the classes that are not masked."""
    if masked is None:
        return values.mean(dim)
    return values.masked_fill(masked, 0).sum(dim) / (~masked).sum(dim)


def check_rows(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Return checked logits (N, K) and labels (N,); see ``check_logits`` and ``check_labels``."""
    rows = check_logits(logits)
    return rows, check_labels(labels, rows)


def check_labels(labels: Any, logits: Tensor) -> Tensor:
    """Return labels (N,), whole numbers in [0, K), as int64 on the device of ``logits`` (N, K)."""
    values = as_tensor(labels, "labels")
    rows, classes = logits.shape
    if values.shape != (rows,):
        raise InputError(f"labels: expected one per row, ({rows},), got {tuple(values.shape)}")
    if values.is_floating_point() or values.dtype == torch.bool:
        raise InputError(f"labels: expected whole numbers in [0, {classes}), got {values.dtype}")
    values = values.to(device=logits.device, dtype=torch.int64)
    wrong = (values < 0) | (values >= classes)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        hint = from_one(int(values.min()), int(values.max()), classes)
        raise InputError(
            f"labels: expected 0 to {classes - 1}, got {int(values[row])} in row {row}{hint}"
        )
    return values


def from_one(lowest: int, highest: int, classes: int) -> str:
    """Return a hint for an error if labels count the classes from 1, else ""."""
    if lowest < 1 or highest != classes:
        return ""
    return f"; labels from {lowest} to {highest} count from 1: subtract 1 from all of them"


def full_precision(values: Tensor) -> Tensor:
    """Return half-precision values as float32, others unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def log_mean_probabilities(logits: Iterable[Tensor]) -> Tensor:
    """Return the log of the mean class probabilities of several sets of logits (N, K)."""
    total, count = None, 0
    for part in logits:
        row = full_precision(part).log_softmax(dim=1)
        total = row if total is None else torch.logaddexp(total, row)
        count += 1
    if total is None:
        raise ValueError("logits: expected at least one set, got none")
    return total - math.log(count)
