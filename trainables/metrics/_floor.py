"""Noise floors: the errors of a perfectly calibrated model with the same predictions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainables.common.fields import check_choice, check_count
from trainables.common.later import Tensor, torch
from trainables.metrics._metrics import FLOORED, METRICS, Metric
from trainables.metrics._scores import (
    BLOCK_ELEMENTS,
    ArrayLike,
    Scores,
    bin_index,
    bin_sums,
    mass_edges,
    plugins_metric,
    probs_and_labels,
    width_edges,
)

DRAWS = 400  # Sets of labels: the standard error of the mean is a twentieth of the spread.


class NoiseFloor(NamedTuple):
    """The distribution of a metric of a calibrated model, as fractions.

    Attributes:
        mean: The expected value.
        quantile: The value that 95% of all test sets stay below.
    """

    mean: float
    quantile: float


def noise_floor(
    log_probs: ArrayLike, metric: str = "ece", bins: int = 15, draws: int = DRAWS, seed: int = 0
) -> NoiseFloor:
    """Return the noise floor of a metric: its value if the model's probabilities were right.

    The metric is ``ece``, ``aece``, ``cwece``, or a plugin's that is registered as ``floored``. For
    the other arguments and for errors see ``noise_floors``, which computes several metrics at the
    cost of one.
    """
    if METRICS.code(metric) is not None:
        return _summary(registered_draws(METRICS[metric], log_probs, draws, seed))
    return noise_floors(log_probs, (metric,), bins, draws, seed)[metric]


def noise_floors(
    log_probs: ArrayLike,
    metrics: Sequence[str] = FLOORED,
    bins: int = 15,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, NoiseFloor]:
    """Return the noise floors of metrics: their values if the model's probabilities were right.

    Labels of all rows are drawn from the predicted probabilities ``draws`` times, and the metric of
    ``calibration_report`` is computed for each draw. A perfectly calibrated model has the mean of
    these values instead of 0: with 10,000 rows an ``ece`` of about 0.004. Differences below it mean
    nothing.

    Args:
        log_probs: (N, K), log-probabilities or logits.
        metrics: Some of ``ece, aece, cwece``.
        bins: Number of bins, at least 1.
        draws: Number of draws of all labels, at least 1. For 50,000 rows and 1,000 classes, 400
            draws take seconds.
        seed: The same seed gives the same numbers for any choice of metrics.

    Raises:
        ValueError: If a metric has no floor, ``bins`` or ``draws`` is below 1, or
            ``calibration_report`` would reject the scores.
    """
    simulation = _Simulation(log_probs, *_checked(metrics, bins, draws), metrics)
    simulation.run(seed)
    return {metric: _summary(simulation.errors(metric)) for metric in metrics}


def registered_draws(
    metric: Metric, logits: ArrayLike, draws: int = DRAWS, seed: int = 0
) -> Tensor:
    """Return a plugin's metric for labels drawn from the probabilities, (draws,), float64."""
    values = torch.as_tensor(logits).detach().cpu()
    probs, _ = probs_and_labels(values, values.argmax(1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(probs, draws, replacement=True, generator=generator)
    return torch.stack([plugins_metric(metric, probs, own).mean() for own in labels.T])


def noise_floors_of_groups(
    log_probs: ArrayLike,
    labels: ArrayLike,
    groups: Tensor,
    metrics: Sequence[str] = FLOORED,
    bins: int = 15,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, NoiseFloor]:
    """Return the noise floors of metrics for rows in groups, such as the pixels of images.

    Errors within a group are dependent, so floors are higher than those of ``noise_floors``, which
    assumes independent rows. This is a wild bootstrap of groups (Cameron, Gelbach and Miller,
    2008). The residual of a bin and group is its sum of scores minus hits, minus the sum expected
    from the bin's other groups for as many rows (0 if there are none), as in a jackknife. Each draw
    changes the signs of random groups. The floor is too high if a bin has few groups.

    Args:
        log_probs: (N, K), log-probabilities or logits.
        labels: (N,), integers in [0, K).
        groups: The group number of each row, (N,), int64.
        metrics: Some of ``ece, aece, cwece``.
        bins: Number of bins, at least 1.
        draws: Number of draws of the signs, at least 1.
        seed: The same seed gives the same numbers.

    Raises:
        ValueError: If there is not one group per row, or for the reasons of ``noise_floors``.
    """
    bins, draws = _checked(metrics, bins, draws)
    scores, place, count = _grouped(log_probs, labels, groups)
    generator = torch.Generator().manual_seed(seed)
    signs = (2.0 * torch.randint(2, (draws, count), generator=generator) - 1).double()
    top = scores.confidence[None], scores.correct[None]
    edges = width_edges(bins, torch.float64, top[0].device)

    def errors(scores: Tensor, hits: Tensor, edges: Tensor) -> Tensor:
        """Return the sum of all bins' absolute gaps for each draw, (draws,)."""
        residuals, _ = _residuals(scores, hits, edges, place, count)
        return (signs @ residuals).abs().sum((0, 2))

    def class_errors() -> Tensor:
        parts = [errors(*block, edges) for block in scores.hit_columns()]
        return torch.stack(parts).sum(0) / scores.num_classes

    found = {
        "ece": lambda: errors(*top, edges),
        "aece": lambda: errors(*top, mass_edges(top[0], bins)),
        "cwece": class_errors,
    }
    return {metric: _summary(found[metric]() / scores.num_rows) for metric in metrics}


def bin_spread_of_groups(
    log_probs: ArrayLike, labels: ArrayLike, groups: Tensor, bins: int = 15
) -> NDArray[np.float64]:
    """Return the standard error of accuracy minus confidence in each bin, (bins,), as fractions.

    The rows are in groups; see ``noise_floors_of_groups`` for the residuals. The bins are those of
    ``reliability_curve``. An empty bin has NaN.

    Raises:
        ValueError: See ``noise_floors_of_groups``.
    """
    bins = check_count("bins", bins)
    scores, place, count = _grouped(log_probs, labels, groups)
    top = scores.confidence[None], scores.correct[None]
    edges = width_edges(bins, scores.edge_dtype, top[0].device)
    residuals, counts = _residuals(*top, edges, place, count)
    return (residuals.square().sum((0, 1)).sqrt() / counts.sum((0, 1))).cpu().numpy()


def _grouped(log_probs: ArrayLike, labels: ArrayLike, groups: Tensor) -> tuple[Scores, Tensor, int]:
    """Return the scores, the index of each row's group, and the number of groups."""
    scores = Scores(log_probs, None, labels)
    if groups.shape != scores.labels.shape:
        raise ValueError(
            f"expected groups of shape ({scores.num_rows},), got {tuple(groups.shape)}"
        )
    units, place = groups.unique(return_inverse=True)
    return scores, place, len(units)


def _residuals(
    scores: Tensor, hits: Tensor, edges: Tensor, place: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """Return the residual and number of rows of each group in each bin, both (C, G, bins)."""
    bins = edges.shape[-1] - 1
    cells, size = bin_index(scores, edges) + place * bins, groups * bins
    gaps, counts = (
        bin_sums(cells, values, size).view(len(scores), -1, bins)
        for values in (scores - hits, torch.ones_like(scores))
    )
    others = counts.sum(1, keepdim=True) - counts
    elsewhere = (gaps.sum(1, keepdim=True) - gaps) / others.clamp(min=1)
    return gaps - counts * elsewhere, counts


def _checked(metrics: Sequence[str], bins: int, draws: int) -> tuple[int, int]:
    for metric in metrics:
        check_choice("metric", metric, FLOORED)
    return check_count("bins", bins), check_count("draws", draws)


def _summary(errors: Tensor) -> NoiseFloor:
    return NoiseFloor(float(errors.mean()), float(np.quantile(errors.numpy(), 0.95)))


def _uniform(rows: int, draws: int, generator: torch.Generator) -> Tensor:
    return torch.rand(rows, draws, generator=generator, dtype=torch.float64)


@lru_cache(maxsize=1)  # All recipes of a task have the same number of rows.
def _first_uniform(rows: int, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return uniform numbers, (rows, draws), and the generator's state after the draw."""
    generator = torch.Generator().manual_seed(seed)
    return _uniform(rows, draws, generator), generator.get_state()


class _Simulation:
    """Draws labels from the predicted probabilities many times, and sums the gaps of each bin.

    Rows are processed in blocks.
    """

    def __init__(self, log_probs: ArrayLike, bins: int, draws: int, metrics: Sequence[str]) -> None:
        self._values = torch.as_tensor(log_probs).detach().cpu()
        self._predicted = self._values.argmax(dim=-1)
        scores = Scores(self._values, None, self._predicted)
        confidence = scores.confidence[None]
        self._edges = width_edges(bins, torch.float64, confidence.device)
        self._top = {
            name: bin_index(confidence, edges)[0]
            for name, edges in (("ece", self._edges), ("aece", mass_edges(confidence, bins)))
            if name in metrics
        }
        self._gaps = {
            name: bin_sums(index[None], confidence, bins).T.repeat(1, draws)
            for name, index in self._top.items()
        }
        self._bins, self._draws, self._classes = bins, draws, scores.num_classes
        cells = self._classes * bins if "cwece" in metrics else 0
        self._cell_scores = torch.zeros(cells, dtype=torch.float64)
        self._cell_hits = torch.zeros(draws, cells, dtype=torch.int32)

    def run(self, seed: int) -> None:
        """Draw labels of all rows and count the hits."""
        generator = torch.Generator()
        step = max(1, BLOCK_ELEMENTS // max(self._classes, self._draws))
        for first in range(0, len(self._values), step):
            rows = slice(first, first + step)
            probs = self._values[rows].double().softmax(dim=1)
            if first:
                uniform = _uniform(len(probs), self._draws, generator)
            else:
                uniform, state = _first_uniform(len(probs), self._draws, seed)
                generator.set_state(state)
            ends = probs.cumsum(dim=1)
            ends[:, -1] = 1.0  # Otherwise a draw above a rounded sum would have class K.
            self._add_top(rows, ends, uniform)
            if len(self._cell_scores):
                self._add_classes(probs, torch.searchsorted(ends, uniform, right=True))

    def errors(self, metric: str) -> Tensor:
        """Return the metric for each draw, (draws,), float64."""
        rows = len(self._values)
        if metric != "cwece":
            return self._gaps[metric].abs().sum(dim=0) / rows
        gaps = [(self._cell_scores - hits).abs().sum() for hits in self._cell_hits]
        return torch.stack(gaps) / (rows * self._classes)

    def _add_top(self, rows: slice, ends: Tensor, uniform: Tensor) -> None:
        predicted = self._predicted[rows, None]
        above = ends.gather(1, predicted)
        below = ends.gather(1, (predicted - 1).clamp(min=0)).where(predicted > 0, 0.0)
        hits = ((below <= uniform) & (uniform < above)).double()
        for name, index in self._top.items():
            self._gaps[name].index_add_(0, index[rows], hits, alpha=-1)

    def _add_classes(self, probs: Tensor, labels: Tensor) -> None:
        cells = bin_index(probs, self._edges) + torch.arange(self._classes) * self._bins
        self._cell_scores.index_add_(0, cells.flatten(), probs.flatten())
        hit = cells.gather(1, labels) + torch.arange(self._draws) * len(self._cell_scores)
        ones = torch.ones(1, dtype=torch.int32).expand(hit.numel())
        self._cell_hits.view(-1).index_add_(0, hit.flatten(), ones)
