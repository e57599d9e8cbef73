from dataclasses import replace

import numpy as np

from trainables.data._inputs import DatasetInfo
from trainables.data._rows import RowArrays
from trainables.data._source import SOURCES
from trainables.data.digits import DigitsReader

DEVIATION = 90.0  # Of the noise, in steps of a pixel's 256.
SEED = 0


@SOURCES.register("digits-noisy")
class NoisyDigitsReader(DigitsReader):
    """The digits with noise on every pixel: hard enough that learning rows by heart fails.

    A network that is trained on a few hundred of them is right on all of those and on about 70 % of
    the others, and over-confident by some 15 points: calibration has something to do.
    """

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        """Return all images, each with noise of its own that is always the same."""
        info, rows, test = super().read(download)
        noise = _bell(rows.values.shape) * DEVIATION
        noisy = np.clip(np.rint(rows.values + noise), 0, 255).astype(np.uint8)
        source = f"{info.source}; noise of deviation {DEVIATION:g} of 255"
        return replace(info, source=source), RowArrays(noisy, rows.labels), test


def _bell(shape: tuple[int, ...]) -> np.ndarray:
    """Return about normal numbers: sums of eight bytes, the same with every version of NumPy."""
    raw = np.random.Philox(key=SEED).random_raw(int(np.prod(shape)))
    sums = raw.view(np.uint8).reshape(*shape, 8).sum(axis=-1, dtype=np.int64)
    return (sums - 8 * 127.5) / np.sqrt(8 * (256**2 - 1) / 12)
