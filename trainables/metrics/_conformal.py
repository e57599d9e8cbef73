"""Conformal prediction sets: their size, and how often they contain the label."""

import math
from typing import TypeAlias

from trainables.common.later import Tensor, torch
from trainables.common.logit_rows import row_blocks
from trainables.metrics._metrics import SETS
from trainables.metrics._refinement import halves
from trainables.metrics._scores import Scores, sorted_rows

PENALTY, FREE = 0.01, 5  # RAPS adds PENALTY to the score for each class beyond the first five.
SLACK = 1e-6  # Relative tolerance: equal probabilities of different rows differ by rounding.
KINDS = "lac", "aps", "raps"
STEPS = 60  # Bisection steps, enough for the last bit of a float64.

Rows: TypeAlias = tuple[Tensor, Tensor]
"""Logits (N, K) and labels (N,)."""


def conformal_sets(scores: Scores, calibration: Rows | None = None) -> dict[str, Tensor]:
    """Return coverage of the label and size of each row's set, (2, N), by name in ``SETS``.

    LAC (Sadinle et al. 2019) scores a class by its probability. APS (Romano et al. 2020) scores it
    by the total probability of the class and all more probable ones, and RAPS (Angelopoulos et al.
    2021) adds a penalty for classes beyond the first five. APS and RAPS decide at random whether
    the last class belongs to a set. Here the result is the mean over all random decisions, so that
    a set may contain half a class.

    Args:
        scores: The rows, given as logits.
        calibration: Other rows of the same classes for fitting the thresholds. Without them,
            thresholds are fitted on each half of the rows and applied to the other half.
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
    return {
        name: torch.stack((labels.covered(name.partition("_")[0], limit), size))
        for name, limit, size in zip(SETS, limits, _sizes(scores, limits), strict=True)
    }


class _Labels:
    """Ranks of the labels among each row's classes, most probable first.

    Attributes:
        rank: The number of classes before the label, (N,), int64; equally probable classes are in
            the order of their numbers, as in a prediction.
        own: The probability of the label, (N,).
        above: The probability of all classes before the label, (N,).
    """

    def __init__(self, scores: Scores) -> None:
        self.own, labels = scores.nll.neg().exp(), scores.labels[:, None]
        classes = torch.arange(scores.num_classes, device=labels.device)
        self.rank, self.above = torch.zeros_like(scores.labels), torch.zeros_like(self.own)
        for part in row_blocks(scores.values):
            # If the prediction is right, no class comes before the label.
            rows = part.start + (scores.correct[part] == 0).nonzero()[:, 0]
            block, label = scores.values[rows], labels[rows]
            true = block.gather(1, label)
            ahead = block > true
            if bool(((equal := block == true).sum(1) > 1).any()):
                ahead |= equal & (classes < label)
            self.rank[rows] = ahead.sum(1)
            depths = block.sub(block.amax(1, keepdim=True).double())
            self.above[rows] = depths.exp_().mul_(ahead).sum(1) * scores.confidence[rows]

    def _start(self, kind: str) -> Tensor:
        """Return the lower ends of the labels' score intervals, (N,); ``own`` is their width."""
        return self.above + _penalty(self.rank) if kind == "raps" else self.above

    def limit(self, kind: str, percent: int, rows: Tensor) -> float:
        """Return the threshold fitted on rows: a probability for LAC, otherwise a score.

        With too few rows for the level it is 0 (LAC) or infinite: sets then contain every class.
        """
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
        """Return the probability that each row's set contains its label, (N,)."""
        if kind == "lac":
            return (self.own >= limits).double()
        return _share(limits, self._start(kind), self.own)


def _penalty(rank: Tensor | int) -> Tensor:
    """Return the penalty of RAPS on the class of a rank; the most probable class has rank 0."""
    return PENALTY * (torch.as_tensor(rank).double() + 1 - FREE).clamp(min=0)


def _share(limit: float | Tensor, start: Tensor, width: Tensor) -> Tensor:
    """Return the probability that a uniform draw from a score's interval is below a limit."""
    return ((limit - start) / width.clamp(min=1e-300)).clamp_(0, 1)


def _sizes(scores: Scores, limits: Tensor) -> Tensor:
    """Return the sizes of each row's sets, (S, N), for limits (S, N) in the order of ``SETS``."""
    # The sorted values below are relative to the row's largest probability, so the limits are too.
    limits = (limits / scores.confidence).T.contiguous()
    columns = {kind: [i for i, n in enumerate(SETS) if n.startswith(f"{kind}_")] for kind in KINDS}
    lac, aps, raps = (limits[:, columns[kind]].contiguous() for kind in KINDS)
    lac = lac.log().neg()
    most = _most_penalised(raps, scores)
    penalty = _penalty(torch.arange(most, device=limits.device))
    parts: list[tuple[Tensor, ...]] = []
    for part in row_blocks(scores.values):
        depths = sorted_rows(-scores.values[part]).double()
        depths -= depths[:, :1].clone()
        probs = depths.neg().exp_()
        ends = probs.cumsum(1)
        below = torch.searchsorted(depths, lac[part], right=True)
        penalised = torch.addcdiv(ends[:, :most], penalty, scores.confidence[part, None])
        inside = _inside(aps[part], ends, probs), _inside(raps[part], penalised, probs)
        parts.append((below, *inside[0], *inside[1]))
    found = [torch.cat(each) for each in zip(*parts, strict=True)]
    sizes = torch.empty_like(limits)
    sizes[:, columns["lac"]] = found[0].double()
    for kind, limit, own in (("aps", aps, found[1:4]), ("raps", raps, found[4:])):
        whole, end, width = own
        share = _share(limit, end - width, width)
        sizes[:, columns[kind]] = torch.where(whole < scores.num_classes, whole + share, whole)
    return sizes.T


def _most_penalised(limits: Tensor, scores: Scores) -> int:
    """Return an upper bound on the size of all RAPS sets, which follows from the penalty."""
    largest = float((limits * scores.confidence[:, None]).max()) / PENALTY
    return min(scores.num_classes, math.ceil(min(largest, scores.num_classes)) + FREE + 1)


def _inside(limits: Tensor, ends: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of classes below each limit, and the interval of the next class.

    Score intervals end at ``ends`` (n, E), have the widths ``probs`` and do not overlap, so that at
    most one class is partly in the set. A class is counted if its interval ends at or below the
    limit. Of the next class (the last one if none follows), the end and the width are returned.
    Limits and all results are (n, m).
    """
    whole = torch.searchsorted(ends, limits, right=True)
    last = whole.clamp(max=ends.shape[1] - 1)
    return whole, ends.gather(1, last), probs.gather(1, last)
