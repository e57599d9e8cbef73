"""Whether a confidence is calibrated at all: a test and an interval of its squared error."""

import math
from typing import NamedTuple

import scipy

from trainables.metrics._scores import Binned, variance_of_mean

LEVEL = 0.95


class CalibrationTest(NamedTuple):
    """The debiased squared error between confidence and hit rate over bins of equal mass.

    Attributes:
        p: Probability of an error at least as large, were the confidence calibrated.
        low, high: Ends of the 95 % interval of the error; no error is below 0.
    """

    p: float
    low: float
    high: float


def calibration_test(binned: Binned) -> CalibrationTest:
    """Test one row of confidences in bins.

    Sun, Chaudhari, Barnett and Dobriban (arXiv:2408.08998): the debiased estimate varies by a part
    that falls with the error and by one that chance alone gives; the interval is a normal one of
    both. Under calibration the second is a sum of squares, whose first two moments are those of a
    scaled chi-square: its tail is the p-value.
    """
    terms, chance = binned.squared_terms()[0], binned.chance_squares()[0]
    rows, error = len(terms), float(terms.mean())
    total, squares = float(chance.sum()), float(chance.square().sum())
    variance = variance_of_mean(terms, binned.squared_chance())
    half = float(scipy.stats.norm.ppf((1 + LEVEL) / 2)) * math.sqrt(variance)
    low, high = max(error - half, 0.0), max(error + half, 0.0)
    if not squares:  # Every confidence is 0 or 1: one miss is enough.
        return CalibrationTest(float(error <= 0), low, high)
    scale = squares / total
    p = float(scipy.stats.chi2.sf((rows * error + total) / scale, total / scale))
    return CalibrationTest(p, low, high)
