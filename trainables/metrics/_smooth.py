"""The smooth calibration error: a kernel in the place of bins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft, optimize

from trainables.metrics._scores import ArrayLike, Scores

GRID = 1 << 13
"""Cells that the confidences are sorted into: far narrower than any bandwidth that is chosen."""


def smooth_ece(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bandwidth: float | None = None,
) -> float:
    """Return the smooth calibration error (smECE) of the top-label confidence, in [0, 1].

    Blasiok and Nakkiran (2023): the gaps between confidence and correctness are smoothed along the
    confidence by a Gaussian that is reflected at 0 and 1; the error is the integral of the absolute
    value. It falls as the bandwidth grows, and the bandwidth at which both are the same number is
    chosen, so there is nothing to tune, and close confidences never fall apart by a bin's edge.

    Confidences are rounded to 8192 cells and the Gaussian is applied in the cosine transform, where
    reflection comes by itself: O(N) and 8192 log 8192 a bandwidth.

    Args:
        logits: See ``calibration_report``.
        probs: See ``calibration_report``.
        labels: See ``calibration_report``.
        bandwidth: Standard deviation of the Gaussian, in (0, 1]; chosen as above if left out.

    Raises:
        ValueError: See ``calibration_report``; or if the bandwidth is out of its range.
    """
    if bandwidth is not None and not 0 < bandwidth <= 1:
        raise ValueError(f"bandwidth={bandwidth!r} is outside (0, 1]")
    scores = Scores(logits, probs, labels)
    confidence, correct = scores.confidence.cpu().numpy(), scores.correct.cpu().numpy()
    cells = np.minimum((confidence * GRID).astype(np.int64), GRID - 1)
    sums = np.bincount(cells, confidence - correct, minlength=GRID) / scores.num_rows
    waves = fft.dct(sums, norm="ortho")
    if bandwidth is not None:
        return _error(waves, bandwidth)
    if _error(waves, 1 / GRID) <= 1 / GRID:  # Below what the cells can tell, as of no gap at all.
        return _error(waves, 1 / GRID)
    return float(optimize.brentq(lambda width: _error(waves, width) - width, 1 / GRID, 1.0))


def _error(waves: NDArray[np.float64], bandwidth: float) -> float:
    """Return the smooth error at one bandwidth."""
    damping = np.exp(-((np.pi * np.arange(GRID) * bandwidth) ** 2) / 2)
    return float(np.abs(fft.idct(waves * damping, norm="ortho")).sum())
