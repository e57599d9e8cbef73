"""Rows of logits and their labels: checks of what somebody else hands over, and blocks."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainables.common.errors import InputError

ROWS_AT_ONCE = 4096
# Temporaries of this many values stay in a core's cache; a GPU wants large ones.
BLOCK_VALUES = {"cpu": 1 << 16, "cuda": 1 << 22}


def row_blocks(rows: Tensor, least: int = 1) -> list[slice]:
    """Cut rows (N, K) into slices of at least some rows whose float64 temporaries are small."""
    values = BLOCK_VALUES.get(rows.device.type, BLOCK_VALUES["cpu"])
    step = max(least, values // rows.shape[1])
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def as_tensor(values: Any, name: str) -> Tensor:
    """Return numbers as a tensor, which shares the memory of an array where PyTorch can read it.

    Raises:
        InputError: If they are no numbers.
    """
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
    """Return logits (N, K) as a floating tensor on their device, half precision as float32.

    Raises:
        InputError: If they are not two-dimensional, have no rows or fewer than two classes, or hold
            a value that is not a finite real number.
    """
    values = as_tensor(logits, "logits")
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise InputError(f"logits: shape {tuple(values.shape)}, expected (N, K), N >= 1 and K >= 2")
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    parts = row_blocks(values, ROWS_AT_ONCE)
    if not bool(torch.stack([torch.isfinite(values[part]).all() for part in parts]).all()):
        finite = torch.isfinite(values)
        row, column = map(int, (~finite).nonzero()[0])
        raise InputError(
            f"logits: {int((~finite).sum())} values are not finite, the first at row {row}, "
            f"class {column}: {float(values[row, column])}; only finite values are allowed"
        )
    return values


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
