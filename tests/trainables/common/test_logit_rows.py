import math

import numpy as np
import pytest
import torch

from trainables.common import logit_rows
from trainables.common.errors import InputError
from trainables.common.logit_rows import (
    LogitScale,
    check_logits,
    check_rows,
    find_masked,
    row_blocks,
)

EYE = np.eye(2, 3)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float16, torch.float32),
        (np.float32, torch.float32),
        (np.float64, torch.float64),
        (np.int64, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_logits_keep_their_values_in_a_precision_to_compute_in(given, kept):
    values = torch.tensor(EYE, dtype=given) if isinstance(given, torch.dtype) else EYE.astype(given)
    found = check_logits(values)
    assert found.dtype == kept
    assert found.tolist() == EYE.tolist()
    assert not check_logits(found.clone().requires_grad_()).requires_grad


def test_arrays_that_pytorch_cannot_read_are_copied():
    turned = [EYE[:1][::-1], EYE[::-1], EYE[:, ::-1], EYE.astype(">f8"), EYE.astype(np.longdouble)]
    fixed = EYE.copy()
    fixed.flags.writeable = False
    for values in (*turned, fixed):
        assert check_logits(values).tolist() == values.tolist()
    assert check_rows(EYE, np.array([1, 0], ">i2")[::-1])[1].tolist() == [0, 1]
    assert check_logits(EYE).data_ptr() == EYE.ctypes.data


def test_the_smallest_rows_are_let_in():
    logits, labels = check_rows([[1.0, 2.0]], np.array([1], np.uint8))
    assert (logits.shape, labels.tolist(), labels.dtype) == ((1, 2), [1], torch.int64)


@pytest.mark.parametrize(
    ("logits", "labels", "text"),
    [
        (np.zeros((0, 3)), [], r"expected shape \(N, K\), N >= 1 and K >= 2, got \(0, 3\)"),
        (np.zeros((2, 1)), [0, 0], r"got \(2, 1\)"),
        (np.zeros((1, 2, 3)), [0], r"got \(1, 2, 3\)"),
        (EYE, [0, 1, 2], r"labels: expected one per row, \(2,\), got \(3,\)"),
        (EYE, [[0], [1]], r"labels: expected .* got \(2, 1\)"),
        (EYE, [0.0, 1.0], r"labels: expected whole numbers in \[0, 3\), got torch.float64"),
        (EYE, [True, False], "labels: expected .* got torch.bool"),
        (
            EYE,
            torch.zeros(2, dtype=torch.complex64),
            "labels: expected real numbers, got torch.complex64",
        ),
        (EYE.astype(str), [0, 1], "logits: expected real numbers, got <U32"),
        (EYE * 1j, [0, 1], "logits: expected real numbers, got complex128"),
        (EYE, [0, 3], "labels: expected 0 to 2, got 3 in row 1"),
        (EYE, [-1, 3], "labels: expected 0 to 2, got -1 in row 0"),
        (EYE, [-1, 2], "got -1 in row 0"),
    ],
)
def test_logits_and_labels_of_another_form_are_refused(logits, labels, text):
    with pytest.raises(InputError, match=text):
        check_rows(logits, labels)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_value_that_is_not_finite_is_named(value, monkeypatch):
    monkeypatch.setattr(logit_rows, "ROWS_AT_ONCE", 2)
    logits = torch.zeros(5, 3)
    logits[3, 1] = logits[4, 0] = value
    with pytest.raises(InputError, match=rf"got {value} in row 3, class 1 \(2 such values\)"):
        check_logits(logits)


@pytest.mark.parametrize(
    ("rows", "classes", "least", "step"),
    [(10, 3, 1, 4), (8, 12, 1, 1), (7, 40, 3, 3), (2, 3, 1, 4)],
)
def test_blocks_cover_all_rows_once_in_order(rows, classes, least, step, monkeypatch):
    monkeypatch.setitem(logit_rows.BLOCK_VALUES, "cpu", 12)
    values = torch.arange(rows * classes).view(rows, classes)
    parts = [values[block] for block in row_blocks(values, least)]
    assert torch.equal(torch.cat(parts), values)
    assert [len(part) for part in parts[:-1]] == [step] * ((rows - 1) // step)


@pytest.mark.parametrize(
    ("logits", "masked"),
    [
        ([[0.0, 1.0, -math.inf]], [[False, False, True]]),
        ([[0.0, 1.0, -4998.0]], [[False, False, False]]),
        ([[0.0, 1.0, -5000.0]], [[False, False, True]]),
        ([[1e4, 0.0, 0.0]], [[False, False, False]]),
        ([[1e6, 0.0, -1e9]], [[False, False, True]]),
    ],
)
def test_a_mask_is_deeper_than_any_logit(logits, masked):
    rows = torch.tensor(logits, dtype=torch.float64)
    leveled, found = LogitScale.of(rows).level(rows)
    assert (torch.zeros_like(rows, dtype=bool) if found is None else found).tolist() == masked
    assert find_masked(leveled) is None or find_masked(leveled).tolist() == masked


def test_a_row_of_nothing_but_masks_is_refused():
    with pytest.raises(InputError, match=r"row 1 has -inf for every class; remove such rows"):
        check_logits([[0.0, -math.inf], [-math.inf, -math.inf]])
