"""Checks that scores are logits or probabilities, and converts probabilities to logits."""

from pathlib import Path

import numpy as np

from trainables.common.errors import InputError
from trainables.common.logit_rows import ROWS_AT_ONCE
from trainables.data._labels import note

SUM_TOLERANCE = 1e-3
# Largest difference of a row's sum from 1, for rounded values and for values with few digits.
ROUNDED, COARSE = 0.01, 0.05
DIGITS = (1, 2, 3, 4)
ZERO = 0.01  # Zeros become this share of the last digit's unit: it hardly changes the sum.
NEARLY_ZERO = -0.01  # Values from here to 0 are probabilities of 0 with rounding errors.
GIVE_LOGITS = "add --kind logits (in a sweep file's task: `inputs: {kind: logits}`)"
PERCENT = "percentages (rows add up to 100); divide them by 100"
GIVE_PROBS = "add --kind probs (in a sweep file's task: `inputs: {kind: probs}`)"


def check_columns(scores: np.ndarray, place: Path) -> None:
    """Refuse scores with only one column."""
    if scores.ndim == 1 or scores.shape[1:] == (1,):
        raise InputError(
            f"{place}: expected one score per class, got one per row (shape {scores.shape}); for "
            "probabilities p of class 1, save probs = np.stack([1 - p, p], axis=1), or a table "
            "with the columns prob_0 and prob_1; for logits z of class 1, save "
            "logits = np.stack([0 * z, z], axis=1)"
        )


def log_probs(probs: np.ndarray, place: Path) -> np.ndarray:
    """Return the logarithms of probabilities (N, K), or raise ``InputError`` for other numbers.

    If the sum of a row differs from 1 by more than ``SUM_TOLERANCE``, as after rounding, each row
    is divided by its sum, and 0 counts as a hundredth of the last digit's unit. Otherwise 0 counts
    as the smallest normal number of the type. Notes tell the user of divided rows, and of zeros
    among rounded values.
    """
    if probs.ndim != 2 or (probs.dtype.kind != "f" and not _are_percentages(probs)):
        raise InputError(
            f"{place}: probabilities: expected floating values of shape (N, K), got "
            f"{probs.dtype} of shape {probs.shape}"
        )
    if not len(probs):
        return probs
    _refuse_values(probs, place)
    sums = probs.sum(axis=1, dtype=np.float64)
    off = np.abs(sums - 1)
    digits = _digits(probs)
    if off.max() > _tolerance(probs.shape[1], digits):
        raise InputError(f"{place}: {_sums_refused(probs, sums)}")
    least = float(np.finfo(probs.dtype).tiny)
    if off.max() > SUM_TOLERANCE:
        least = max(least, ZERO / 10 ** (digits or DIGITS[-1]))
        between = f"rows add up to {sums.min():.4g} to {sums.max():.4g}, as after rounding"
        note(place, f"{between}; each row is divided by its sum, and 0 is replaced by {least:g}")
        probs = probs / sums[:, None].astype(probs.dtype)
    elif digits and (zeros := np.count_nonzero(probs == 0)):
        text = f"{zeros} probabilities were rounded to 0 and are replaced by {least:.2g}"
        note(place, f"{text}, which distorts fits; save more than {digits} digits")
    positive = np.maximum(probs, probs.dtype.type(least))
    return np.log(positive, out=positive)


def check_are_logits(logits: np.ndarray, place: Path) -> None:
    """Refuse logits (N, K) that are probabilities or percentages; note possible sigmoids."""
    if logits.ndim != 2 or not logits.size or not logits.min() >= 0:
        return
    if _are_percentages(logits):
        raise InputError(f"{place}: the logits are {PERCENT} and {GIVE_PROBS}")
    if logits.dtype.kind != "f":
        return
    if np.abs(logits.sum(axis=1, dtype=np.float64) - 1).max() <= _tolerance(
        logits.shape[1], _digits(logits)
    ):
        raise InputError(
            f"{place}: the logits are probabilities (no negative value, every row adds up to 1); "
            f"{GIVE_PROBS}"
        )
    if 0 < logits.max() <= 1:
        note(place, "all logits are between 0 and 1, so they may be outputs of sigmoids")


def _refuse_values(probs: np.ndarray, place: Path) -> None:
    """Refuse values that are negative or not finite."""
    if probs.min() >= 0 and np.isfinite(probs.max()):
        return
    if _are_log_probs(probs[:ROWS_AT_ONCE]):
        raise InputError(f"{place}: the probabilities are log-probabilities; save np.exp of them")
    row, column = map(int, np.argwhere(~np.isfinite(probs) | (probs < 0))[0])
    text = f"{place}: {probs[row, column]:.6g} in row {row}, class {column} is not a probability"
    lowest = float(np.nanmin(probs))
    if lowest < NEARLY_ZERO:
        raise InputError(f"{text}; if these are logits, {GIVE_LOGITS}")
    raise InputError(f"{text}; expected values in [0, 1]")


def _are_log_probs(scores: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        sums = np.exp(scores.astype(np.float64)).sum(axis=1)
    return bool(scores.max() <= SUM_TOLERANCE and (np.abs(sums - 1) <= SUM_TOLERANCE).all())


def _are_percentages(scores: np.ndarray) -> bool:
    """Return True if no value is negative and each row adds up to about 100."""
    sums = scores.sum(axis=-1, dtype=np.float64)
    return bool(scores.min(initial=0) >= 0 and (np.abs(sums / 100 - 1) <= COARSE).all())


def _digits(probs: np.ndarray) -> int | None:
    """Return the number of decimals that the first rows were rounded to; None for more than 4."""
    some = probs[:ROWS_AT_ONCE].astype(np.float64)
    rounded = (d for d in DIGITS if np.allclose(np.round(some, d), some, rtol=0, atol=1e-7))
    return next(rounded, None)


def _tolerance(classes: int, digits: int | None) -> float:
    """Return the largest allowed difference between 1 and the sum of a row."""
    return float(np.clip(classes * 0.5 / 10**digits, ROUNDED, COARSE)) if digits else ROUNDED


def _sums_refused(probs: np.ndarray, sums: np.ndarray) -> str:
    """Return the message for rows of non-negative values that do not add up to 1."""
    if _are_percentages(probs):
        return f"the probabilities are {PERCENT}"
    between = f"rows add up to {sums.min():.4g} to {sums.max():.4g}, expected 1"
    if np.median(np.abs(sums - 1)) <= ROUNDED:
        row = int(np.abs(sums - 1).argmax())
        return f"row {row} adds up to {sums[row]:.6g}, expected 1; most rows do"
    if probs.max() > 1 + SUM_TOLERANCE:
        row, column = map(int, np.argwhere(probs > 1)[0])
        return f"{probs[row, column]:.6g} in row {row}, class {column} is above 1; {between}"
    if sums.max() <= 1 + ROUNDED:
        return f"{between}; save all classes, with more digits"
    return (
        f"{between}; they may be one sigmoid per class; save probabilities of classes that add up "
        "to 1 (divide each row by its sum if the network is used in this way)"
    )
