"""How sure the difference of two configurations is that were judged on the same rows."""

from collections.abc import Callable

from torch import Tensor

Predictions = Callable[[str, str], tuple[Tensor, Tensor]]
"""Returns logits (N, K) and labels (N,) of the validation rows, by stage and key of an artifact."""


def standard_error(difference: Tensor) -> float:
    """Return the standard error of a mean of differences (N,), one a row.

    A single row has none: it is NaN, above which nothing lies.
    """
    return float(difference.std() / len(difference) ** 0.5)
