"""Long-tailed training sets, cut from balanced ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from trainables.data._arrays import LabelledImages
from trainables.data._info import DatasetInfo
from trainables.data._source import Reader
from trainables.data._split import take_counts
from trainables.errors import InputError

# The tail of Table 4 in the class-wise loss scaling paper: 20,431 images of CIFAR-10, 19,573 of
# CIFAR-100.
DEFAULT_RATIO = 10.0
# The task is one data set, whatever the split's seed, so the images kept are always the same.
SEED = 0


def long_tail_counts(largest: int, classes: int, ratio: float) -> np.ndarray:
    """Return the exponential profile of Cui et al. (2019), (K,), int64.

    Class k keeps ``floor(largest * ratio ** (-k / (K - 1)))`` images, at least one.
    """
    share = ratio ** (-np.arange(classes) / (classes - 1))
    # The summand keeps whole numbers whole where the power is rounded down.
    return np.maximum(np.floor(largest * share + 1e-6), 1).astype(np.int64)


class LongTailMixin(Reader):
    """Thins the training classes of the reader it is mixed into; the test set stays balanced.

    Written ``NAME:RATIO`` with the size of the largest class over that of the smallest, at least 1;
    without it the ratio is 10.

    Attributes:
        ratio: The size of the largest class over that of the smallest.
    """

    takes_argument = True

    def __init__(self, name: str, argument: str, root: Path) -> None:
        super().__init__(name, argument, root)
        self.ratio = self._ratio()

    def _ratio(self) -> float:
        try:
            ratio = float(self.argument or DEFAULT_RATIO)
        except ValueError:
            ratio = 0.0
        if not 1 <= ratio < np.inf:
            raise InputError(f"dataset {self.name!r}: ratio {self.argument!r} is outside [1, inf)")
        return ratio

    def read(self, download: bool) -> tuple[DatasetInfo, LabelledImages, LabelledImages | None]:
        """Return the thinned training images and the untouched test images."""
        ratio = self.ratio
        info, train, test = super().read(download)  # type: ignore[safe-super]
        available = np.bincount(train.labels, minlength=info.num_classes)
        wanted = long_tail_counts(int(available.max()), info.num_classes, ratio)
        rows = take_counts(train.labels, np.minimum(wanted, available), SEED, "long_tail")
        source = f"{info.source}; exponential long tail of ratio {ratio:g} (Cui et al., 2019)"
        return replace(info, source=source), train.take(rows), test
