"""Rows of logits and their labels: checks of what somebody else hands over, masks, and blocks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch

ROWS_AT_ONCE = 4096
# Half the depth of the weakest mask in common use, -1e4; others are -65504, -1e9, the smallest
# float32 and -inf.
MASK_DEPTH = 5000.0
MASKED = 1e7  # Below the row's largest logit: where a calibrator finds masked ones, however deep.
# A typical logit is the median of the row maxima. Above the first, logits are measured in a unit in
# which it is about the second; in any case a mask is deeper than 32 typical logits.
LARGEST, USUAL, DEEPER = 1e4, 32.0, 32.0
# Temporaries of this many values stay in a core's cache; a GPU wants large ones.
BLOCK_VALUES = {"cpu": 1 << 16, "cuda": 1 << 22}


def row_blocks(rows: Tensor, least: int = 1) -> list[slice]:
    """Cut rows (N, K) into slices of at least some rows whose float64 temporaries are small."""
    values = BLOCK_VALUES.get(rows.device.type, BLOCK_VALUES["cpu"])
    step = max(least, values // rows.shape[1])
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def as_tensor(values: Any, name: str) -> Tensor:
    """Return numbers as a tensor, which shares the memory of an array where PyTorch can read it."""
    if isinstance(values, Tensor):
        values = values.detach()
    else:
        values = np.asarray(values)
        if values.dtype.kind not in "biuf":
            raise InputError(f"{name}: dtype {values.dtype}, expected real numbers")
        native = np.float64 if values.dtype.itemsize > 8 else values.dtype.newbyteorder("=")
        values = np.require(values, native, ["C", "W"])
        # A row that was turned round counts as contiguous, for being the only one.
        values = torch.from_numpy(values.copy() if min(values.strides, default=0) < 0 else values)
    if values.is_complex():
        raise InputError(f"{name}: dtype {values.dtype}, expected real numbers")
    return values


def check_logits(logits: Any) -> Tensor:
    """Return logits (N, K) as a floating tensor on their device, half precision as float32."""
    values = as_tensor(logits, "logits")
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise InputError(f"logits: shape {tuple(values.shape)}, expected (N, K), N >= 1 and K >= 2")
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    parts = row_blocks(values, ROWS_AT_ONCE)
    # A maximum is NaN or infinite where a value is, and -inf where no class is allowed.
    if not bool(torch.stack([values[part].amax(1).isfinite().all() for part in parts]).all()):
        _refuse(values)
    return values


def _refuse(values: Tensor) -> None:
    wrong = ~(values.isfinite() | values.isneginf())
    if not bool(wrong.any()):
        row = int(values.amax(1).isneginf().nonzero()[0])
        raise InputError(f"logits: row {row} has -inf for every class; leave out such rows")
    row, column = map(int, wrong.nonzero()[0])
    raise InputError(
        f"logits: {int(wrong.sum())} values are not finite, the first at row {row}, class "
        f"{column}: {float(values[row, column])}; only finite values are allowed, and -inf for a "
        "masked class"
    )


@dataclass(frozen=True)
class LogitScale:
    """The size of logits, by which masked ones are told from large ones.

    A class is masked where its logit is -inf or so far below the row's largest that it is no output
    of a network: 5,000, or 32 typical logits if that is more. Such a class is impossible; it takes
    no part in a fit, in smoothing or in a penalty.

    Attributes:
        typical: The median of the absolute row maxima, which no mask changes; 0 where the logits of
            no row differ by more than 5,000.
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
        """Return the power of two that logits are divided by: 1 unless they are huge."""
        return 1.0 if self.typical <= LARGEST else 2.0 ** math.ceil(math.log2(self.typical / USUAL))

    @property
    def depth(self) -> float:
        """Return how far below the row's largest logit a masked one is at least."""
        return max(MASK_DEPTH, DEEPER * self.typical)

    def level(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits (N, K) in units with all masks at one depth, and which are masked."""
        masked = find_masked(logits, self.depth)
        rows = logits if self.unit == 1 else logits / self.unit
        if masked is not None:
            rows = torch.where(masked, rows.amax(1, keepdim=True) - MASKED, rows)
        return rows, masked


def find_masked(logits: Tensor, depth: float = MASKED / 2) -> Tensor | None:
    """Return which classes of logits (N, K) are masked, (N, K), or None if none is."""
    if not _wide(logits, depth):
        return None
    return torch.cat([masked_classes(logits[p], depth) for p in row_blocks(logits, ROWS_AT_ONCE)])


def masked_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the numbers of the rows (N, K) whose label, of (N,), is a masked class: (M,)."""
    gaps = logits.amax(1) - logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    return (gaps > LogitScale.of(logits).depth).nonzero().squeeze(1)


def masked_classes(logits: Tensor, depth: float = MASK_DEPTH) -> Tensor:
    """Return the mask of ``find_masked``, also if empty, without waiting for the device."""
    return logits.amax(1, keepdim=True) - logits > depth


def _wide(logits: Tensor, depth: float) -> bool:
    parts = (logits[part].aminmax(dim=1) for part in row_blocks(logits, ROWS_AT_ONCE))
    return bool(torch.stack([(high - low > depth).any() for low, high in parts]).any())


def raise_masked(logits: Tensor, masked: Tensor | None) -> Tensor:
    """Return logits (N, K) with every masked one equal to the smallest other one of its row."""
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
        raise InputError(f"labels: shape {tuple(values.shape)}, expected ({rows},), one a row")
    if values.is_floating_point() or values.dtype == torch.bool:
        raise InputError(f"labels: dtype {values.dtype}, expected whole numbers in [0, {classes})")
    values = values.to(device=logits.device, dtype=torch.int64)
    wrong = (values < 0) | (values >= classes)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        hint = from_one(int(values.min()), int(values.max()), classes)
        raise InputError(
            f"labels: {int(values[row])} in row {row}, allowed are 0 to {classes - 1}{hint}"
        )
    return values


def from_one(lowest: int, highest: int, classes: int) -> str:
    """Return a hint, to be added to an error, if labels count the classes from 1; else nothing."""
    if lowest < 1 or highest != classes:
        return ""
    return f"; labels from {lowest} to {highest} count from 1: subtract 1 from all of them"


def full_precision(values: Tensor) -> Tensor:
    """Return half-precision values as float32, others unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def log_mean_probabilities(logits: Iterable[Tensor]) -> Tensor:
    """Return the log of the averaged class probabilities of logits (N, K), one set at a time."""
    total, count = None, 0
    for part in logits:
        row = full_precision(part).log_softmax(dim=1)
        total = row if total is None else torch.logaddexp(total, row)
        count += 1
    if total is None:
        raise ValueError("logits is empty: at least one set is needed")
    return total - math.log(count)
