"""One metric of one set of predictions, on all test rows and on many resamples of them.

A resample is the vector of how often each row occurs in it. A sum over its rows is the product of
row values with that vector, so one matrix product measures many resamples.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from trainables.common.later import Tensor, torch
from trainables.metrics import Rows, bin_index, rows_or_value, width_edges

BINS = 15  # Same as in the test metrics of evaluations.
BLOCK = 1 << 23  # Maximum size of the factor in a matrix product.


class Resampled(NamedTuple):
    """A metric on all rows, and on each resample: (draws,), float64."""

    value: float
    draws: Tensor


def resampled(
    metric: str, log_probs: Tensor, labels: Tensor, counts: Tensor, calibration: Rows | None = None
) -> Resampled:
    """Return a metric, as ``trainables.metrics.rows_or_value`` defines it.

    Args:
        metric: One of ``METRICS.measurable``; those in ``BOOTSTRAPPED`` and means over rows are
            much faster than others.
        log_probs: (N, K).
        labels: (N,), integers in [0, K).
        counts: (draws, N), how often each row occurs in each resample.
        calibration: Validation rows, used to fit conformal thresholds.
    """
    whole = torch.ones(1, counts.shape[1], dtype=torch.float64)
    make = BOOTSTRAPPED.get(metric) or partial(_any, metric, calibration)
    measure = make(log_probs.double(), labels)
    step = max(1, BLOCK // counts.shape[1])
    parts = [measure(counts[first : first + step].float()) for first in range(0, len(counts), step)]
    return Resampled(float(measure(whole)), torch.cat(parts))


Measure = Callable[[Tensor], Tensor]
"""Gives the metric of each resample, (draws,), from its counts (draws, N)."""


def _mean(values: Tensor) -> Measure:
    # Only deviations from the mean are multiplied, so that single precision is enough.
    centre = values.mean()
    varying = values - centre

    def measure(counts: Tensor) -> Tensor:
        return centre + (counts @ varying.to(counts.dtype)).double() / counts.sum(1)

    return measure


def _any(metric: str, calibration: Rows | None, log_probs: Tensor, labels: Tensor) -> Measure:
    """Return the measure of any metric: the mean of row values, or computed per resample."""
    values = rows_or_value(metric, log_probs, labels, calibration)
    if values.ndim:
        return _mean(values)

    def on_resample(count: Tensor) -> Tensor:
        rows = torch.arange(len(labels)).repeat_interleave(count.long())
        return rows_or_value(metric, log_probs[rows], labels[rows])

    return lambda counts: torch.stack([on_resample(count) for count in counts])


def _accuracy(log_probs: Tensor, labels: Tensor) -> Measure:
    return _mean((log_probs.argmax(1) == labels).double())


def _nll(log_probs: Tensor, labels: Tensor) -> Measure:
    return _mean(-log_probs.log_softmax(1).gather(1, labels[:, None]).squeeze(1))


def _brier(log_probs: Tensor, labels: Tensor) -> Measure:
    probs = log_probs.softmax(1)
    true = probs.gather(1, labels[:, None]).squeeze(1)
    return _mean(probs.square().sum(1) - 2 * true + 1)


def _top_label(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidence, and confidence minus correctness, both (N,)."""
    confidence = log_probs.softmax(1).amax(1)
    return confidence, confidence - (log_probs.argmax(1) == labels).double()


def _ece(log_probs: Tensor, labels: Tensor) -> Measure:
    confidence, gaps = _top_label(log_probs, labels)
    cells = _cells(confidence[:, None], gaps[:, None])
    return lambda counts: _sum_of_gaps(counts, cells) / counts.sum(1)


def _cwece(log_probs: Tensor, labels: Tensor) -> Measure:
    probs = log_probs.softmax(1)
    rows, classes = probs.shape
    gaps = probs.clone()
    gaps[torch.arange(rows), labels] -= 1
    step = max(1, BLOCK // (rows * BINS))

    def measure(counts: Tensor) -> Tensor:
        total = torch.zeros(len(counts), dtype=torch.float64)
        for first in range(0, classes, step):
            block = slice(first, first + step)
            total += _sum_of_gaps(counts, _cells(probs[:, block], gaps[:, block]))
        return total / (counts.sum(1) * classes)

    return measure


def _cells(scores: Tensor, gaps: Tensor) -> Tensor:
    """Spread gaps (N, C) over the equal-width bins ``(a, b]`` of each class: (N, C * BINS)."""
    index = bin_index(scores.contiguous(), width_edges(BINS, torch.float64, scores.device))
    index += torch.arange(scores.shape[1]) * BINS
    spread = torch.zeros(len(scores), scores.shape[1] * BINS, dtype=torch.float64)
    return spread.scatter_(1, index, gaps)


def _sum_of_gaps(counts: Tensor, cells: Tensor) -> Tensor:
    return (counts @ cells.to(counts.dtype)).double().abs().sum(1)


def _aece(log_probs: Tensor, labels: Tensor) -> Measure:
    """Return the measure with bins of equal mass; each resample has its own bin edges.

    An edge of ``aece`` equals a confidence or is between it and the next larger one. So the bins up
    to this edge have all rows up to this confidence, and the edge's exact value is not needed.
    """
    confidence, gaps = _top_label(log_probs, labels)
    ordered, order = confidence.sort()
    gaps, parts = gaps[order], torch.arange(1, BINS)
    ends = torch.searchsorted(ordered, ordered, right=True) - 1  # Last row of equal confidence.

    def measure(counts: Tensor) -> Tensor:
        drawn = counts.index_select(1, order)
        rows = drawn.sum(1)
        wanted = (parts * rows.long()[:, None] // BINS).int()
        places = torch.searchsorted(drawn.cumsum(1, dtype=torch.int32), wanted, right=True)
        sums = drawn.mul_(gaps.to(drawn.dtype)).cumsum(1, dtype=torch.float64)
        until = torch.cat([sums.gather(1, ends[places]), sums[:, -1:]], dim=1)
        inside = until.diff(dim=1, prepend=torch.zeros(len(until), 1, dtype=torch.float64))
        return inside.abs().sum(1) / rows

    return measure


BOOTSTRAPPED: Mapping[str, Callable[[Tensor, Tensor], Measure]] = {
    "acc": _accuracy,
    "nll": _nll,
    "brier": _brier,
    "ece": _ece,
    "aece": _aece,
    "cwece": _cwece,
}
"""Metrics with a fast form; others are means over rows, or are computed on each resample."""
