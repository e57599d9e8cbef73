"""What a temperature would leave of NLL and Brier score: their refinement part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainables.common.later import Tensor, torch
from trainables.metrics._scores import BLOCK_ELEMENTS, Scores

STEPS, CLOSE = 50, 1e-5  # Of Newton's method, which squares the distance with each step.
MOST = BLOCK_ELEMENTS // 2  # Values that a temperature is fitted on.
LIMITS = (1e-3, 1e3)
LOWEST = -1e4  # Logits below it count as much: their probability is 0.


class Refined(NamedTuple):
    """NLL and Brier score of each row after a temperature fitted on other rows, (N,), float64."""

    nll: Tensor
    brier: Tensor


def halves(rows: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the numbers of the rows to fit on and of those to measure, twice.

    The halves are drawn by a fixed seed, so that the order of the rows does not count.
    """
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(device)
    first, second = order[: (rows + 1) // 2], order[(rows + 1) // 2 :]
    yield from ((second, first), (first, second)) if rows > 1 else ((first, first),)


def refined(scores: Scores) -> Refined:
    """Return the proper scores after temperature scaling, each half fitted on the other.

    Berta, Holzmueller, Jordan and Bach (arXiv:2501.19195): the part of a proper score that no
    recalibration removes is refinement, the rest is calibration. The temperature has the lowest NLL
    on at most 2 million values.
    """
    found = Refined(torch.empty_like(scores.nll), torch.empty_like(scores.brier))
    most, scale = max(1, MOST // scores.num_classes), 1.0
    for fit, rest in halves(scores.num_rows, scores.labels.device):
        scale = _scale(scores.values[fit[:most]].double(), scores.labels[fit[:most]], scale)
        own = Scores(scores.values[rest] * scale, None, scores.labels[rest])
        found.nll[rest], found.brier[rest] = own.nll, own.brier
    return found


def _scale(logits: Tensor, labels: Tensor, scale: float) -> float:
    """Return the factor of logits (N, K) with the lowest NLL, which is convex in it."""
    logits = logits.sub(logits.amax(1, keepdim=True)).clamp_(min=LOWEST)
    true = logits.gather(1, labels[:, None]).mean()
    for _ in range(STEPS):
        probs = (logits * scale).softmax(1)
        mean = (probs * logits).sum(1)
        slope = float(mean.mean() - true)
        bend = float(probs.mul_(logits.square()).sum(1).sub_(mean.square()).mean())
        wanted = scale - slope / bend if bend > 0 else (scale if slope == 0 else LIMITS[slope < 0])
        step = min(max(wanted, scale / 3, LIMITS[0]), scale * 3, LIMITS[1])
        scale, last = step, scale
        if abs(scale - last) <= CLOSE * last:
            break
    return scale
