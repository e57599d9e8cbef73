"""Holm's correction for many tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["holm"]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for how many there are, in the order given, at most 1.

    Holm (1979): the smallest of m is multiplied by m, the next by m - 1 and so on, and none may
    fall below one before it.
    """
    given = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    raised = given[order] * np.arange(len(given), 0, -1)
    corrected = np.empty_like(given)
    corrected[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return corrected.tolist()
