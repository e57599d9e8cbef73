"""How sure the difference of two configurations is that were judged on the same rows."""

import sys
from collections.abc import Callable

from torch import Tensor

from trainables.common.stages import ArtifactRef
from trainables.stages import ValidationRows

UNKNOWN = sys.float_info.max
"""A standard error that cannot be told; finite, so that a journal can hold it."""

Predictions = Callable[[ArtifactRef], ValidationRows]
"""Returns the stored validation rows of an outcome."""


def standard_error(difference: Tensor, images: Tensor | None = None) -> float:
    """Return the standard error of a mean of differences (N,), one a row.

    Where rows are pixels, their ``images`` (N,) are independent: the error is that of the
    sums over images, with the number of pixels taken as known. A single row or image tells nothing
    of it: then it is ``UNKNOWN``: no multiple of it is exceeded.
    """
    sums = difference
    if images is not None:
        units, place = images.unique(return_inverse=True)
        away = difference - difference.mean()
        sums = away.new_zeros(len(units)).index_add_(0, place, away)
    if len(sums) < 2:
        return UNKNOWN
    return float(sums.std() * len(sums) ** 0.5 / len(difference))
