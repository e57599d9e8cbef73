"""Refinement: the part of NLL and Brier score that remains after temperature scaling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainables.common.later import Tensor, torch
from trainables.common.logit_rows import row_blocks
from trainables.metrics._scores import BLOCK_ELEMENTS, Scores, right_spread

STEPS, CLOSE = 50, 1e-5  # Newton's method: limit of steps, and the relative change that ends it.
MOST = BLOCK_ELEMENTS // 2  # Largest number of values used to fit a temperature.
LIMITS = (1e-3, 1e3)
NEAR = 1e-4  # Relative step of the scale for finite differences.
LOWEST = -1e4  # Logits further below the largest of their row are raised to this distance.


class Refined(NamedTuple):
    """Terms (N,), float64, of the proper scores after a temperature fitted on other rows.

    A term is the row's own score plus the row's effect on the scores of the other half, through the
    temperature that is fitted on the row (0 if there is none, or if it is at one of ``LIMITS``).

    Attributes:
        nll_chance, brier_chance: The second-order variance of the mean, see ``variance_of_mean``.
    """

    nll: Tensor
    brier: Tensor
    nll_chance: float
    brier_chance: float

    def parts(self, scores: Scores) -> dict[str, Tensor]:
        """Return the refinement and calibration terms of both scores, by metric."""
        found = {}
        for name, terms, chance in zip(("nll", "brier"), self[:2], self[2:], strict=True):
            calibration = getattr(scores, name) - terms
            found[f"{name}_refinement"] = right_spread(terms, chance)
            found[f"{name}_calibration"] = right_spread(calibration, chance)
        return found


def halves(rows: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield two pairs of row numbers, each the half to fit on and the half to measure.

    Halves are drawn at random with a fixed seed, because the rows may be sorted. A single row is in
    both halves of a single pair.
    """
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(device)
    first, second = order[: (rows + 1) // 2], order[(rows + 1) // 2 :]
    yield from ((second, first), (first, second)) if rows > 1 else ((first, first),)


def refined(scores: Scores) -> Refined:
    """Return the proper scores of each half after the temperature fitted on the other half.

    Berta, Holzmueller, Jordan and Bach (arXiv:2501.19195): the part of a proper score that no
    recalibration removes is refinement, the rest is calibration. The temperature has the lowest NLL
    on at most 2 million values.
    """
    chance = scores.nll.new_zeros(2)
    most, scale = max(1, MOST // scores.num_classes), 1.0
    scales, fits = torch.empty_like(scores.nll), []
    for fit, rest in halves(scores.num_rows, scores.labels.device):
        fit = fit[:most]
        values, labels = scores.values[fit].double(), scores.labels[fit]
        scales[rest] = scale = _scale(values, labels, scale)
        if LIMITS[0] < scale < LIMITS[1]:
            fits.append((fit, rest, _Moved(values, labels, scale)))
    # Use all rows in order: gathering half of them takes as long as a pass.
    terms, slopes = _scaled(scores.values, scores.labels, scales)
    for fit, rest, moved in fits:
        pull = slopes[:, rest].mean(1, keepdim=True)
        terms[:, fit] -= pull * moved.by * (len(rest) / len(fit))
        chance += moved.chance(len(rest))
    return Refined(*terms, *chance.tolist())


class _Moved:
    """The influence of rows on the temperature that is fitted on them.

    Attributes:
        by: Derivative of the scale with respect to each row's weight, (f,), with mean 0.
    """

    def __init__(self, logits: Tensor, labels: Tensor, scale: float) -> None:
        scales = logits.new_full((len(labels),), scale)
        self._slopes = _scaled(logits, labels, scales)[1]
        near = _scaled(logits, labels, scales * (1 + NEAR))[1]
        self._bends = (near - self._slopes).mean(1) / (scale * NEAR)
        self._slopes -= self._slopes.mean(1, keepdim=True)
        self.by = self._slopes[0] / self._bends[0].clamp(min=1e-300)

    def chance(self, rest: int) -> Tensor:
        """Return half of the second-order variance of the mean NLL and Brier score, (2,).

        It is the error of the temperature times the random slope of the other half's scores, plus
        the effect of their curvature.
        """
        count, moved = len(self.by), self.by.square().mean()
        slopes, both = self._slopes.square().mean(1), (self._slopes * self.by).mean(1)
        met = 2 * slopes * moved / (rest * count) + 2 * (both / rest).square()
        return (met + (self._bends * moved / count).square()) / 8


def _scaled(logits: Tensor, labels: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return NLL and Brier score of logits (N, K) times scales (N,), and slopes, (2, N) each."""
    parts = []
    for part in row_blocks(logits):
        scale, block = scales[part], logits[part]
        largest = block.amax(1, keepdim=True).double()
        block = block.double().sub(largest).clamp_(min=LOWEST)
        true = block.gather(1, labels[part, None])[:, 0]
        powers = (block * scale[:, None]).exp_()
        total, moment = powers.sum(1), block.mul_(powers)
        own, mean = (true * scale).exp() / total, moment.sum(1) / total
        pull = moment.mul_(powers).sum(1) / total.square()
        squares = powers.square_().sum(1) / total.square()
        pull -= mean * squares
        nll, brier = total.log() - true * scale, (squares - 2 * own + 1).clamp_(min=0)
        parts.append(torch.stack((nll, brier, mean - true, 2 * (pull - own * (true - mean)))))
    found = torch.cat(parts, 1)
    return found[:2], found[2:]


def _scale(logits: Tensor, labels: Tensor, scale: float) -> float:
    """Return the factor in ``LIMITS``, of logits (N, K), with the lowest NLL.

    The NLL is convex in this factor; the search begins at ``scale``.
    """
    logits = logits.sub(logits.amax(1, keepdim=True)).clamp_(min=LOWEST)
    true, blocks = logits.gather(1, labels[:, None]).mean(), row_blocks(logits)
    for _ in range(STEPS):
        parts = [_moments(logits[part], scale) for part in blocks]
        mean, spread = torch.cat(parts, 1).mean(1)
        slope, bend = float(mean - true), float(spread)
        wanted = scale - slope / bend if bend > 0 else (scale if slope == 0 else LIMITS[slope < 0])
        step = min(max(wanted, scale / 3, LIMITS[0]), scale * 3, LIMITS[1])
        scale, last = step, scale
        if abs(scale - last) <= CLOSE * last:
            break
    return scale


def _moments(logits: Tensor, scale: float) -> Tensor:
    """Return mean and variance of each row (N, K) under its probabilities at a scale, (2, N)."""
    probs = (logits * scale).softmax(1)
    weighted = probs.mul_(logits)
    mean = weighted.sum(1)
    return torch.stack((mean, weighted.mul_(logits).sum(1) - mean.square()))
