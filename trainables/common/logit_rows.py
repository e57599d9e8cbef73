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


def check_logits(logits: Any) -> Tensor:
    """Return logits (N, K) as a floating tensor on their device, half precision as float32.

    Raises:
        InputError: If they are not two-dimensional, have no rows or fewer than two classes, or hold
            a value that is not finite.
    """
    values = torch.from_numpy(logits) if isinstance(logits, np.ndarray) else torch.as_tensor(logits)
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise InputError(f"logits: shape {tuple(values.shape)}, expected (N, K), N >= 1 and K >= 2")
    values = values.detach()
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
    values = torch.from_numpy(labels) if isinstance(labels, np.ndarray) else torch.as_tensor(labels)
    rows, classes = logits.shape
    if values.shape != (rows,):
        raise InputError(f"labels: shape {tuple(values.shape)}, expected ({rows},), one a row")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise InputError(f"labels: dtype {values.dtype}, expected whole numbers in [0, {classes})")
    values = values.to(device=logits.device, dtype=torch.int64)
    wrong = (values < 0) | (values >= classes)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InputError(f"labels: {int(values[row])} in row {row}, allowed are 0 to {classes - 1}")
    return values
