from collections.abc import Callable

import numpy as np
from scipy import fft, optimize

from trainables.metrics._scores import Scores

GRID = 1 << 13
"""Cells that the confidences are sorted into: far narrower than any bandwidth that is chosen."""


def smooth_error(scores: Scores) -> float:
    """Return the smooth calibration error (smECE) of the top-label confidence, in [0, 1].

    Blasiok and Nakkiran (2023): the gaps between confidence and correctness are smoothed along the
    confidence by a Gaussian that is reflected at 0 and 1; the error is the integral of the absolute
    value. It falls as the bandwidth grows, and the bandwidth at which both are the same number is
    chosen, so there is nothing to tune, and close confidences never fall apart by a bin's edge.
    """
    error_at = smoothed(scores)
    if error_at(1 / GRID) <= 1 / GRID:  # Below what the cells can tell, as of no gap at all.
        return error_at(1 / GRID)
    return float(optimize.brentq(lambda width: error_at(width) - width, 1 / GRID, 1.0))


def smoothed(scores: Scores) -> Callable[[float], float]:
    """Return the smooth error as a function of the Gaussian's standard deviation, in (0, 1].

    Confidences are rounded to 8192 cells and the Gaussian is applied in the cosine transform, where
    reflection comes by itself: O(N) and 8192 log 8192 a bandwidth.
    """
    confidence, correct = scores.confidence.cpu().numpy(), scores.correct.cpu().numpy()
    cells = np.minimum((confidence * GRID).astype(np.int64), GRID - 1)
    sums = np.bincount(cells, confidence - correct, minlength=GRID) / scores.num_rows
    waves = fft.dct(sums, norm="ortho")

    def error_at(bandwidth: float) -> float:
        damping = np.exp(-((np.pi * np.arange(GRID) * bandwidth) ** 2) / 2)
        return float(np.abs(fft.idct(waves * damping, norm="ortho")).sum())

    return error_at
