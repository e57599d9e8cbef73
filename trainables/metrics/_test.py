"""A test of whether confidences are calibrated, and an interval of their squared error."""

import math
from typing import NamedTuple

import scipy

from trainables.metrics._scores import Binned, variance_of_mean

LEVEL = 0.95


class CalibrationTest(NamedTuple):
    """A test and an interval of the squared error between confidence and hit rate.

    Attributes:
        p: Probability of an estimate at least as large if the confidence is calibrated.
        low, high: Ends of the 95 % interval of the error, at least 0.
    """

    p: float
    low: float
    high: float


def calibration_test(binned: Binned) -> CalibrationTest:
    """Test by the debiased squared error whether binned confidences (C = 1) are calibrated.

    Sun, Chaudhari, Barnett and Dobriban (arXiv:2408.08998): one part of the estimate's variance
    falls with the error, the other is that of a calibrated model; the normal interval uses both.
    For a calibrated model, the estimate is a sum of squares. The p-value is the tail of a scaled
    chi-square with the same first two moments.
    """
    terms, chance = binned.squared_terms()[0], binned.chance_squares()[0]
    rows, error = len(terms), float(terms.mean())
    total, squares = float(chance.sum()), float(chance.square().sum())
    variance = variance_of_mean(terms, binned.squared_chance())
    half = float(scipy.stats.norm.ppf((1 + LEVEL) / 2)) * math.sqrt(variance)
    low, high = max(error - half, 0.0), max(error + half, 0.0)
    if not squares:  # Every confidence is 0 or 1, so a single miss disproves calibration.
        return CalibrationTest(float(error <= 0), low, high)
    scale = squares / total
    p = float(scipy.stats.chi2.sf((rows * error + total) / scale, total / scale))
    return CalibrationTest(p, low, high)
