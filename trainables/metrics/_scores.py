"""Checked predictions as float64 probabilities, and the errors of binned scores.

Bins are half open, ``(a, b]``; the first one includes its lower edge. So every score belongs to
exactly one bin, including 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch
from trainables.common.logit_rows import as_tensor, check_labels, row_blocks
from trainables.metrics._metrics import Metric

ArrayLike: TypeAlias = Tensor | NDArray

BLOCK_ELEMENTS = 1 << 22
"""Largest number of probabilities in float64 at once; limits the memory for any N and K."""

COLUMN_ELEMENTS = 1 << 20
"""The limit for blocks of whole classes, which are sorted and should fit in the CPU's cache."""

SUM_TOLERANCE = 1e-3
"""Largest distance of a row's sum from 1, unless the precision is coarser (as of float16)."""


class Scores:
    """Scores of N rows and K classes with their labels, checked, as float64 probabilities.

    The (N, K) matrix is never converted to float64 as a whole: rows are summarised once, and
    ``columns`` computes blocks of classes.

    Args:
        logits: (N, K), finite or minus infinity; may be log-probabilities.
        probs: (N, K), non-negative, rows summing to 1. Exactly one of the two is given.
        labels: (N,), integers in [0, K).

    Attributes:
        num_rows: N.
        num_classes: K.
        confidence: Largest probability of each row, (N,), float64.
        correct: 1.0 where the first class with the largest score is the label, (N,), float64.
        nll: ``-log p_y`` of each row, (N,), float64.
        brier: ``sum_k (p_k - [k = y])^2`` of each row, (N,), float64.
        edge_dtype: Precision to which bin edges are rounded: that of given probabilities, so that
            the float32 nearest to 1/10 is on the edge 1/10; float64 for logits.

    Raises:
        ValueError: If an argument is not as described above.
    """

    def __init__(
        self, logits: ArrayLike | None, probs: ArrayLike | None, labels: ArrayLike | None
    ) -> None:
        if (logits is None) == (probs is None):
            given = "neither" if logits is None else "both"
            raise ValueError(f"give exactly one of logits and probs, got {given}")
        self._name = "probs" if logits is None else "logits"
        self.values = read_values(probs if logits is None else logits, self._name)
        self.labels = read_labels(labels, self.values)
        self.num_rows, self.num_classes = self.values.shape
        self.edge_dtype = torch.float64 if logits is not None else self.values.dtype
        self._summarise()

    def columns(self) -> Iterator[Tensor]:
        """Yield the probabilities of blocks of C classes, (C, N), float64."""
        step = max(1, COLUMN_ELEMENTS // self.num_rows)
        for first in range(0, self.num_classes, step):
            block = self.values[:, first : first + step].double()
            if self._name == "logits":
                block = block.sub(self._shift).exp_().div_(self._scale)
            yield block.T.contiguous()

    def hit_columns(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``columns`` with indicators of the label, both (C, N), float64."""
        first = 0
        for block in self.columns():
            classes = torch.arange(first, first := first + len(block), device=block.device)
            yield block, (self.labels == classes[:, None]).double()

    def _summarise(self) -> None:
        blocks = row_blocks(self.values)
        parts = (self._rows(self.values[part], self.labels[part]) for part in blocks)
        shift, scale, squares, true, predicted = map(torch.cat, zip(*parts, strict=True))
        self.correct = (predicted == self.labels).double()
        if self._name == "logits":
            self._shift, self._scale = shift[:, None], scale[:, None]
            self.confidence, self.nll = scale.reciprocal(), scale.log() + (shift - true)
            true, squares = self.nll.neg().exp(), squares / scale.square()
        else:
            _check_sums(scale, self.values.dtype)
            self.confidence, self.nll = shift, -true.log()
        # Rounding may make the score of an almost perfect row slightly negative.
        self.brier = (squares - 2 * true + 1).clamp_(min=0)

    def _rows(self, block: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return maximum, sum, sum of squares, true class's score and prediction of each row.

        For logits, the sums are of their exponentials after subtracting the maximum.
        """
        largest, predicted = block.max(dim=1)
        check_values(block, largest, self._name)
        largest, true = largest.double(), block.gather(1, labels[:, None]).squeeze(1).double()
        block = block.double()
        if self._name == "logits":
            block = block.sub(largest[:, None]).exp_()
        return largest, block.sum(dim=1), block.square().sum(dim=1), true, predicted


def read_values(values: ArrayLike | None, name: str) -> Tensor:
    assert values is not None
    tensor = as_tensor(values, name)
    if tensor.ndim != 2 or tensor.shape[0] < 1 or tensor.shape[1] < 2:
        raise ValueError(
            f"{name} have shape {tuple(tensor.shape)}; expected (N, K) with N >= 1 and K >= 2"
        )
    return tensor if tensor.is_floating_point() else tensor.double()


def read_labels(labels: ArrayLike | None, values: Tensor) -> Tensor:
    if labels is None:
        raise ValueError("labels are missing")
    return check_labels(labels, values)


def check_values(block: Tensor, largest: Tensor, name: str) -> None:
    # The maximum of a row reveals NaN, infinity and rows of only minus infinity.
    if not largest.isfinite().all():
        raise ValueError(f"{name} contain NaN, infinity or a row of only -inf")
    if name == "probs" and (lowest := float(block.min())) < 0:
        raise ValueError(f"expected probs in [0, 1], got {lowest!r}")


def _check_sums(sums: Tensor, dtype: torch.dtype) -> None:
    worst = float(sums[(sums - 1).abs().argmax()])
    if abs(worst - 1) > max(SUM_TOLERANCE, 2 * torch.finfo(dtype).eps):
        raise ValueError(
            f"expected rows of probs to sum to 1, got {worst:.6g}; pass logits as `logits`"
        )


def probs_and_labels(logits: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the arguments of a plugin's metric: float64 probabilities (N, K), labels (N,)."""
    scores = Scores(logits, None, labels)
    return scores.values.double().softmax(1), scores.labels


def plugins_metric(metric: Metric, probs: Tensor, labels: Tensor) -> Tensor:
    """Return a plugin's metric after checks: a value per row, (N,), or a scalar; float64."""
    assert metric.compute is not None
    try:
        given = metric.compute(probs, labels)
        found = torch.as_tensor(given, dtype=torch.float64, device=probs.device)
    except Exception as error:  # Code of others may raise anything.
        kind = type(error).__name__
        raise InputError(f"metric {metric.name!r} failed: {kind}: {error}") from error
    rows = f"for {len(labels)} rows"
    if found.shape not in ((), labels.shape):
        wanted = "expected a scalar or a value per row"
        raise InputError(f"metric {metric.name!r}: {wanted}, got shape {tuple(found.shape)} {rows}")
    if not bool(found.isfinite().all()):
        bad = float(found[~found.isfinite()].flatten()[0])
        raise InputError(f"metric {metric.name!r} is {bad} {rows}; it must be finite")
    return found


def width_edges(bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the edges ``0, 1/bins, ..., 1``, (bins + 1,), float64, each rounded to ``dtype``."""
    steps = torch.arange(bins + 1, dtype=torch.float64, device=device)
    return (steps / bins).to(dtype).double()


def mass_edges(scores: Tensor, bins: int) -> Tensor:
    """Return the edges of bins with equally many scores, (C, bins + 1).

    Edge j is the value at position ``j N / bins`` of the sorted scores, interpolated linearly and
    constant after the last. The outer edges are the smallest and the largest score. These are the
    edges of the adaptive ECE that papers report (torrvision/focal_calibration).

    Args:
        scores: (C, N); each row has its own edges.
        bins: Number of bins.
    """
    return _edges_of_sorted(sorted_rows(scores), bins)


def _edges_of_sorted(ordered: Tensor, bins: int) -> Tensor:
    last = ordered.shape[1] - 1
    position = torch.arange(bins + 1, dtype=torch.float64, device=ordered.device)
    position = position * ordered.shape[1] / bins
    below = position.floor().clamp(max=last).long()
    above = (below + 1).clamp(max=last)
    low, high = ordered[:, below], ordered[:, above]
    return low + (position - below).clamp(max=1) * (high - low)


def bin_index(scores: Tensor, edges: Tensor) -> Tensor:
    """Return the bin, in [0, bins), of each score.

    Args:
        scores: (C, N).
        edges: (bins + 1,) for all rows, or (C, bins + 1). If edges coincide, all scores equal to
            them go to the first of the bins that end there.
    """
    return torch.searchsorted(edges[..., 1:-1].contiguous(), scores)


def bin_sums(index: Tensor, weights: Tensor, bins: int) -> Tensor:
    """Add up ``weights`` (C, N) by bin: (C, bins), float64."""
    rows = torch.arange(index.shape[0], device=index.device)[:, None]
    sums = torch.zeros(index.shape[0] * bins, dtype=torch.float64, device=index.device)
    sums.scatter_add_(0, (index + rows * bins).flatten(), weights.flatten())
    return sums.view(-1, bins)


def class_errors(scores: Scores, edges: Tensor) -> Tensor:
    """Return the sums over classes of the errors of equal width and of equal mass, (2,).

    To avoid searching the bins of all (N, K) probabilities, each class is sorted once, and only
    the bin of each row's label is searched.

    Args:
        scores: The rows.
        edges: Edges of equal width, (bins + 1,).
    """
    total, first = torch.zeros(2, dtype=torch.float64, device=edges.device), 0
    for columns in scores.columns():
        count = len(columns)
        rows = ((scores.labels >= first) & (scores.labels < first + count)).nonzero()[:, 0]
        hit = scores.labels[rows] - first
        ordered, true = sorted_rows(columns), columns[hit, rows][:, None]
        sums = torch.nn.functional.pad(ordered.cumsum(1), (1, 0))
        both = edges.expand(count, -1), _edges_of_sorted(ordered, len(edges) - 1)
        for place, own in enumerate(both):
            inner = own[:, 1:-1].contiguous()
            ends = torch.searchsorted(ordered, inner, right=True)
            bounds = torch.nn.functional.pad(ends, (1, 0))
            bounds = torch.nn.functional.pad(bounds, (0, 1), value=scores.num_rows)
            index = torch.searchsorted(inner[hit], true) + (hit * (len(edges) - 1))[:, None]
            hits = bin_sums(index.T, torch.ones_like(true.T), count * (len(edges) - 1))
            gaps = sums.gather(1, bounds).diff(dim=1) - hits.view(count, -1)
            total[place] += gaps.abs().sum() / scores.num_rows
        first += count
    return total


class Binned:
    """Binned scores and hits, and the errors computed from them.

    Args:
        scores: (C, N), float64; each row is binned separately.
        hits: (C, N), 1.0 if the predicted event happened, else 0.0.
        edges: (bins + 1,) for all rows, or (C, bins + 1).
    """

    def __init__(self, scores: Tensor, hits: Tensor, edges: Tensor) -> None:
        self._scores, self._hits = scores, hits
        self._index = bin_index(scores, edges)
        self._bins = edges.shape[-1] - 1

    @cached_property
    def counts(self) -> Tensor:
        """Return the number of scores in each bin, (C, bins)."""
        return self._sums(torch.ones_like(self._scores))

    @cached_property
    def scores(self) -> Tensor:
        """Return the sum of the scores in each bin, (C, bins)."""
        return self._sums(self._scores)

    @cached_property
    def hits(self) -> Tensor:
        """Return the number of hits in each bin, (C, bins)."""
        return self._sums(self._hits)

    @cached_property
    def gaps(self) -> Tensor:
        """Return ``n_b (mean score - hit rate)`` of each bin b of n_b scores, (C, bins)."""
        return self._sums(self._scores - self._hits)

    def error(self) -> Tensor:
        """Return ``sum_b n_b / N |hit rate - mean score|`` of each row, (C,), such as the ECE."""
        return self.gaps.abs().sum(dim=1) / self._scores.shape[1]

    def excess(self) -> Tensor:
        """Return the part of the error, (C,), from bins whose mean score exceeds the hit rate."""
        return self.gaps.clamp(min=0).sum(dim=1) / self._scores.shape[1]

    def largest_gap(self) -> Tensor:
        """Return ``max_b |hit rate - mean score|`` of each row, (C,): MCE."""
        return self._mean_gaps.amax(dim=1)

    def debiased_error(self) -> Tensor:
        """Return the error of each row, (C,), minus its expected bias.

        Kumar, Liang and Ma (2019, section 5 and appendix): if a bin's hit rate were drawn again
        from a normal distribution around the observed one, the error would be higher; this
        difference is subtracted. It is computed in closed form, without draws.
        """
        debiased = self._mean_gaps - self._chance
        return (self.counts * debiased).sum(dim=1) / self._scores.shape[1]

    def error_terms(self) -> Tensor:
        """Return the contribution of each score to ``error``, (C, N); row means are ``error``."""
        return (self._scores - self._hits) * self.gaps.sign().gather(1, self._index)

    def excess_terms(self) -> Tensor:
        """Return the contribution of each score to ``excess``, (C, N)."""
        return (self._scores - self._hits) * (self.gaps > 0).gather(1, self._index)

    def largest_gap_terms(self) -> Tensor:
        """Return the contribution of each score to ``largest_gap``, (C, N); 0 outside its bin."""
        largest = self._mean_gaps.argmax(dim=1, keepdim=True)
        weight = self._scores.shape[1] / self.counts.gather(1, largest).clamp(min=1)
        return self.error_terms() * (self._index == largest) * weight

    def debiased_terms(self) -> Tensor:
        """Return the contribution of each score to ``debiased_error``, (C, N)."""
        return self.error_terms() - self._chance.gather(1, self._index)

    @cached_property
    def _mean_gaps(self) -> Tensor:
        return self.gaps.abs() / self.counts.clamp(min=1)

    @cached_property
    def _chance(self) -> Tensor:
        """Return the expected bias of each bin's mean gap, (C, bins)."""
        return chance_gaps(self._mean_gaps, self.counts, self.hits)

    def squared_terms(self) -> Tensor:
        """Return terms (C, N) whose mean is the sum over bins of ``n_b / N gap_b^2``, debiased.

        Multiplying each score's gap by the mean gap of the other scores in its bin makes the
        estimate unbiased. A bin with one score contributes 0.
        """
        gaps = self._scores - self._hits
        others = (self.counts - 1).clamp(min=1).gather(1, self._index)
        squares = gaps * (self.gaps.gather(1, self._index) - gaps) / others
        means = self._sums(squares) / self.counts.clamp(min=1)
        return 2 * squares - means.gather(1, self._index)

    def chance_squares(self) -> Tensor:
        """Return each bin's sum of ``p (1 - p)`` over its number of scores minus 1, (C, bins)."""
        return self._sums(self._scores * (1 - self._scores)) / (self.counts - 1).clamp(min=1)

    def squared_chance(self) -> float:
        """Return the variance of the mean of ``squared_terms`` for a calibrated model."""
        return 2 * float(self.chance_squares().square().sum()) / self._scores.shape[1] ** 2

    def _sums(self, weights: Tensor) -> Tensor:
        return bin_sums(self._index, weights, self._bins)


def variance_of_mean(terms: Tensor, chance: float) -> float:
    """Return the variance of the mean of terms (N,) that include a row's effect on other rows.

    Like a jackknife (Efron and Stein 1981), the spread of such terms counts the second-order
    variance twice. This matters for a calibrated network, which has no other variance.

    Args:
        terms: (N,).
        chance: The second-order variance, counted once.
    """
    return max(float(terms.var(unbiased=False)) / len(terms) - chance, chance)


def right_spread(terms: Tensor, chance: float) -> Tensor:
    """Return terms (N,) with the same mean and the spread of ``variance_of_mean``."""
    own = float(terms.var(unbiased=False)) / len(terms)
    mean = terms.mean()
    return mean + (terms - mean) * (variance_of_mean(terms, chance) / own) ** 0.5 if own else terms


def chance_gaps(mean_gaps: Tensor, counts: Tensor, hits: Tensor) -> Tensor:
    """Return the expected bias of the bins' mean gaps; all arguments have the same shape."""
    filled = counts.clamp(min=1)
    rate = hits / filled
    deviation = (rate * (1 - rate) / filled).clamp(min=0).sqrt()
    return _mean_absolute(mean_gaps, deviation) - mean_gaps


def _mean_absolute(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the mean absolute value of normal variables."""
    ratio = torch.where(deviation > 0, mean / deviation.clamp(min=1e-300), torch.inf)
    spread = math.sqrt(2 / math.pi) * deviation * torch.exp(-ratio.square() / 2)
    return spread + mean * torch.erf(ratio / math.sqrt(2))


def sorted_rows(values: Tensor) -> Tensor:
    """Return the values of each row of (C, N) in ascending order."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return values.sort(dim=1).values
    # On a CPU, numpy sorts several times faster than torch because it returns no indices.
    return torch.from_numpy(np.sort(values.numpy(), axis=1))
