"""Conformal prediction sets: their size, and how often they hold the label."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

from trainables.common.later import Tensor, torch
from trainables.common.logit_rows import row_blocks
from trainables.metrics._metrics import SETS
from trainables.metrics._refinement import halves
from trainables.metrics._scores import Scores, largest_sorted

PENALTY, FREE = 0.01, 5  # RAPS: what each class beyond the first five adds to the score.
WIDTH = 64  # Classes that most sets are found among.
SLACK = 1e-6  # Relative: equal probabilities of different rows differ by rounding.
STEPS = 60  # Of bisection: the last bit of a float64.

Rows: TypeAlias = tuple[Tensor, Tensor]
"""Logits (N, K) and labels (N,)."""


def conformal_sets(scores: Scores, calibration: Rows | None = None) -> dict[str, Tensor]:
    """Return whether sets hold the label and how large they are, (2, N), by ``SETS``.

    LAC (Sadinle et al. 2019) keeps classes by their probability, APS (Romano et al. 2020) by the
    probability of all classes up to them, RAPS (Angelopoulos et al. 2021) with a penalty on classes
    beyond the first five. APS and RAPS draw whether the last class belongs to a set. Here nothing
    is drawn: figures are the mean over all draws, so that a set may hold half a class.

    Args:
        scores: The rows, given as logits.
        calibration: Other rows of the same classes, which thresholds are fitted on. Without them
            each half of the rows has the thresholds of the other half.
    """
    ranked, found = _Ranked(scores), scores.nll.new_empty(len(SETS), 2, scores.num_rows)
    every = torch.arange(scores.num_rows, device=scores.labels.device)
    if calibration is None:
        parts = [(ranked, fit, rest) for fit, rest in halves(len(every), every.device)]
    else:
        other = _Ranked(Scores(calibration[0], None, calibration[1]))
        parts = [(other, torch.arange(len(other.own), device=every.device), every)]
    for fitted, fit, rest in parts:
        for place, name in enumerate(SETS):
            kind, _, percent = name.partition("_")
            found[place][:, rest] = ranked.sets(kind, fitted.limit(kind, int(percent), fit), rest)
    return dict(zip(SETS, found, strict=True))


class _Ranked:
    """The classes of each row, most probable first, and where the label is among them.

    Attributes:
        rank: The number of classes before the label, (N,), int64; of equal classes the first one
            comes first, as in a prediction.
        own: The probability of the label, (N,).
    """

    def __init__(self, scores: Scores) -> None:
        self._values, self._scale = scores.values, scores.confidence
        self._width = min(WIDTH, scores.num_classes)
        self.own, labels = scores.nll.neg().exp(), scores.labels[:, None]
        classes = torch.arange(scores.num_classes, device=labels.device)
        ranks, tops = [], []
        for part in row_blocks(self._values):
            block, label = self._values[part], labels[part]
            true = block.gather(1, label)
            ahead = (block > true).sum(1)
            if bool(((equal := block == true).sum(1) > 1).any()):
                ahead += (equal & (classes < label)).sum(1)
            ranks.append(ahead)
            tops.append(self._probs(part, self._width))
        self.rank, self._top = torch.cat(ranks), torch.cat(tops)

    def _probs(self, rows: slice | Tensor, width: int) -> Tensor:
        """Return the largest probabilities of some rows, falling, (n, width), float64."""
        block = largest_sorted(self._values[rows], width).double()
        return block.sub_(block[:, :1].clone()).exp_().mul_(self._scale[rows, None])

    def _far(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all probabilities of rows that need more than the largest ones, in blocks."""
        for part in row_blocks(self._values[:1].expand(len(rows), -1)):
            yield rows[part], self._probs(rows[part], self._values.shape[1])

    @cached_property
    def _above(self) -> Tensor:
        """The probability of all classes before the label, (N,)."""
        near = self.rank.clamp(max=self._width - 1)[:, None]
        above = (self._top.cumsum(1) - self._top).gather(1, near)[:, 0]
        for rows, probs in self._far((self.rank >= self._width).nonzero()[:, 0]):
            above[rows] = (probs.cumsum(1) - probs).gather(1, self.rank[rows, None])[:, 0]
        return above

    def _start(self, kind: str) -> Tensor:
        """Return the lower end of each label's score, (N,); its width is the probability."""
        return self._above + _penalty(self.rank) if kind == "raps" else self._above

    def limit(self, kind: str, percent: int, rows: Tensor) -> float:
        """Return the threshold fitted on rows: of LAC a probability, of the others a score."""
        own, wanted = self.own[rows], (len(rows) + 1) * percent / 100
        if wanted > len(rows):
            return 0.0 if kind == "lac" else math.inf
        if kind == "lac":
            falling = own.sort(descending=True).values
            return float(falling[math.ceil(wanted - SLACK) - 1]) * (1 - SLACK)
        start = self._start(kind)[rows]
        low, high = 0.0, float((start + own).max())
        for _ in range(STEPS):
            middle = (low + high) / 2
            enough = float(_share(middle, start, own).sum()) >= wanted
            low, high = (low, middle) if enough else (middle, high)
        return high

    def sets(self, kind: str, limit: float, rows: Tensor) -> Tensor:
        """Return coverage and size of the sets of rows, (2, n)."""
        own, top = self.own[rows], self._top[rows]
        if kind == "lac":
            covered, full = (own >= limit).double(), top[:, -1] >= limit
        else:
            covered = _share(limit, self._start(kind)[rows], own)
            full = top.sum(1) + (_penalty(self._width - 1) if kind == "raps" else 0) <= limit
        sizes = _sizes(kind, limit, top)
        if self._width < self._values.shape[1]:
            place = torch.empty_like(self.rank)
            place[rows] = torch.arange(len(rows), device=rows.device)
            for far, probs in self._far(rows[full]):
                sizes[place[far]] = _sizes(kind, limit, probs)
        return torch.stack((covered, sizes))


def _penalty(rank: Tensor | int) -> Tensor:
    """Return what RAPS adds to the score of the class of a rank, 0 for the most probable."""
    return PENALTY * (torch.as_tensor(rank).double() + 1 - FREE).clamp(min=0)


def _share(limit: float, start: Tensor, width: Tensor) -> Tensor:
    """Return the probability that a score, drawn evenly from its interval, is below a limit."""
    return ((limit - start) / width.clamp(min=1e-300)).clamp_(0, 1)


def _sizes(kind: str, limit: float, probs: Tensor) -> Tensor:
    """Return the size of the set of each row of falling probabilities (n, k), (n,)."""
    if kind == "lac":
        return (probs >= limit).sum(1).double()
    ends = probs.cumsum(1)
    if kind == "raps":
        ends += _penalty(torch.arange(probs.shape[1], device=probs.device))
    # The intervals of scores do not overlap: at most one class is in the set in part.
    whole = torch.searchsorted(ends, ends.new_full((len(ends), 1), limit), right=True)
    last = whole.clamp(max=probs.shape[1] - 1)
    width = probs.gather(1, last)
    part = _share(limit, ends.gather(1, last) - width, width)
    return torch.where(whole < probs.shape[1], whole + part, whole.double())[:, 0]
