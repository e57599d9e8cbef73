"""Conformal prediction sets: their size, and how often they hold the label."""

import math
from typing import TypeAlias

from trainables.common.later import Tensor, torch
from trainables.common.logit_rows import row_blocks
from trainables.metrics._metrics import SETS
from trainables.metrics._refinement import halves
from trainables.metrics._scores import Scores, sorted_rows

PENALTY, FREE = 0.01, 5  # RAPS: what each class beyond the first five adds to the score.
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
    labels = _Labels(scores)
    every = torch.arange(scores.num_rows, device=scores.labels.device)
    if calibration is None:
        parts = [(labels, fit, rest) for fit, rest in halves(len(every), every.device)]
    else:
        other = _Labels(Scores(calibration[0], None, calibration[1]))
        parts = [(other, torch.arange(len(other.own), device=every.device), every)]
    limits = scores.nll.new_empty(len(SETS), scores.num_rows)
    for fitted, fit, rest in parts:
        for place, name in enumerate(SETS):
            kind, _, percent = name.partition("_")
            limits[place, rest] = fitted.limit(kind, int(percent), fit)
    sizes = _sizes(scores, dict(zip(SETS, limits, strict=True)))
    return {
        name: torch.stack((labels.covered(name.partition("_")[0], limit), sizes[name]))
        for name, limit in zip(SETS, limits, strict=True)
    }


class _Labels:
    """Where the label is among the classes of each row, most probable first.

    Attributes:
        rank: The number of classes before the label, (N,), int64; of equal classes the first one
            comes first, as in a prediction.
        own: The probability of the label, (N,).
        above: The probability of all classes before the label, (N,).
    """

    def __init__(self, scores: Scores) -> None:
        self.own, labels = scores.nll.neg().exp(), scores.labels[:, None]
        classes = torch.arange(scores.num_classes, device=labels.device)
        ranks, sums = [], []
        for part in row_blocks(scores.values):
            block, label = scores.values[part], labels[part]
            true = block.gather(1, label)
            ahead = block > true
            if bool(((equal := block == true).sum(1) > 1).any()):
                ahead |= equal & (classes < label)
            ranks.append(ahead.sum(1))
            block = block.double()
            sums.append(block.sub(block.amax(1, keepdim=True)).exp_().mul_(ahead).sum(1))
        self.rank, self.above = torch.cat(ranks), torch.cat(sums) * scores.confidence

    def _start(self, kind: str) -> Tensor:
        """Return the lower end of each label's score, (N,); its width is the probability."""
        return self.above + _penalty(self.rank) if kind == "raps" else self.above

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

    def covered(self, kind: str, limits: Tensor) -> Tensor:
        """Return whether the set of each row holds its label, (N,)."""
        if kind == "lac":
            return (self.own >= limits).double()
        return _share(limits, self._start(kind), self.own)


def _penalty(rank: Tensor | int) -> Tensor:
    """Return what RAPS adds to the score of the class of a rank, 0 for the most probable."""
    return PENALTY * (torch.as_tensor(rank).double() + 1 - FREE).clamp(min=0)


def _share(limit: float | Tensor, start: Tensor, width: Tensor) -> Tensor:
    """Return the probability that a score, drawn evenly from its interval, is below a limit."""
    return ((limit - start) / width.clamp(min=1e-300)).clamp_(0, 1)


def _sizes(scores: Scores, limits: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the sizes of the sets, (N,), by ``SETS``; each row is sorted once."""
    penalty = _penalty(torch.arange(scores.num_classes, device=scores.labels.device))
    found: dict[str, list[Tensor]] = {name: [] for name in SETS}
    for part in row_blocks(scores.values):
        # Relative to the largest probability of the row, as limits are.
        scale = scores.confidence[part, None]
        depths = sorted_rows(-scores.values[part]).double()
        depths -= depths[:, :1].clone()
        probs = depths.neg().exp_()
        ends = probs.cumsum(1)
        for kind in ("lac", "aps", "raps"):
            names = [name for name in SETS if name.startswith(f"{kind}_")]
            limit = torch.stack([limits[name][part] for name in names], 1) / scale
            if kind == "lac":
                sizes = torch.searchsorted(depths, limit.log().neg(), right=True).double()
            else:
                ends = ends.addcdiv_(penalty, scale) if kind == "raps" else ends
                sizes = _inside(limit, ends, probs)
            for name, size in zip(names, sizes.unbind(1), strict=True):
                found[name].append(size)
    return {name: torch.cat(sizes) for name, sizes in found.items()}


def _inside(limits: Tensor, ends: Tensor, probs: Tensor) -> Tensor:
    """Return how many classes are below limits (n, m), (n, m).

    Their intervals end at ``ends`` (n, K) and are as wide as ``probs``. They do not overlap: at
    most one class is in the set in part.
    """
    whole = torch.searchsorted(ends, limits, right=True)
    last = whole.clamp(max=probs.shape[1] - 1)
    width = probs.gather(1, last)
    part = _share(limits, ends.gather(1, last) - width, width)
    return torch.where(whole < probs.shape[1], whole + part, whole.double())
