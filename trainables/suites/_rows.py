"""Which rows of a suite a task is measured on."""

from __future__ import annotations

import numpy as np

from trainables.data import SplitSpec
from trainables.data._split import draw


def kept_rows(labels: np.ndarray, split: SplitSpec) -> np.ndarray:
    """Return the sorted rows of ``labels`` (N,) that a task's limit of test images leaves.

    It is the draw that chose the task's own test images: from the same labels, the same rows.
    """
    limit = split.test_limit
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    return draw(labels, limit, split.seed, "test_limit")
