"""Selective risk in the low-confidence region."""

import math
from dataclasses import field

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, count, number
from trainables.losses._base import LOSSES, VARIANTS, ReducedLoss
from trainables.losses._confidence import SCORES, row_count, selective_confidence, valid_order

TINY = 1e-12


@LOSSES.register("au")
class SelectiveAULoss(ReducedLoss):
    """Cross-entropy weighted by ``-log(1 - G(c))``; G is the distribution of the confidence c.

    G comes from a histogram of the confidences on [0, 1], smoothed so that the gradient flows
    through it: ``G(x) = sum_b n_b sigmoid((x - centre_b) / smoothness) / n``. Rows at or above the
    ``coverage`` quantile τ of the batch share the weight of τ. G is clipped to
    [1/(B+1), B/(B+1)] for batches of B rows.

    ``variant`` selects the confidence:

    - ``paper``: from the probabilities; ``neg_entropy`` is normalised to ``1 - H / log K``.
    - ``released``: from a second softmax of the probabilities, which squeezes the scores into few
      bins; ``neg_entropy`` has a sign error that makes every confidence 1 and the loss a multiple
      of cross-entropy.

    ``released`` is the default, because the published coverage and smoothness were chosen with it.
    With these, ``paper`` does not train, because lowering every confidence reduces the loss
    fastest. (For ten classes the second softmax gives scores between 0.10 and 0.23, for which a
    smoothness of 0.1 is wide; ``paper`` needs about 0.5.) With ``score="neg_entropy"`` use
    ``paper`` and a smoothness of 0.5.

    In evaluation mode a batch is counted for its own loss, but not for the loss of later batches.

    Source: Zhou et al., Revisiting Reweighted Risk for Calibration, 2025, sec. 4.2, Eq. 13-15.

    Do not use ``histogram="batch"`` with batches of a few rows, which do not show the distribution.

    Args:
        coverage: Share κ of the rows that count as low confidence, in (0, 1).
        smoothness: Width ν of the smoothed step, above 0, in units of the score.
        score: Confidence score: ``msp``, ``margin`` or ``neg_entropy``.
        bins: Number of equal bins on [0, 1].
        variant: ``paper`` or ``released``, see above.
        histogram: ``epoch`` counts all batches since ``start_epoch``, as in the released code;
            ``batch`` counts each batch separately.
        batch_size: B. By default the number of rows that are not ignored in the batch; the released
            code always uses the configured batch size.
    """

    coverage: float = number(default=0.9, low=0.0, high=1.0, open_low=True, open_high=True)
    smoothness: float = number(default=0.1, low=0.0, open_low=True)
    score: str = choice(default="msp", choices=SCORES)
    bins: int = count(default=64)
    variant: str = choice(default="released", choices=VARIANTS)
    histogram: str = choice(default="epoch", choices=("epoch", "batch"))
    batch_size: int | None = count(default=None, kw_only=True)
    counts: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Double precision: float32 cannot count the pixels of an epoch.
        self.register_buffer("counts", torch.zeros(self.bins, dtype=torch.float64))

    def start_epoch(self, epoch: int) -> None:
        """Reset the histogram."""
        self.counts.zero_()

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        scores = self._confidence(logits)
        counts = self._counted(scores.detach(), valid)
        threshold = masked_quantile(scores, valid, self.coverage)
        # Not torch.minimum, which would halve the gradient of a score equal to the quantile.
        low = torch.where(scores >= threshold, threshold, scores)
        ranks = smooth_cdf(low, counts, self.smoothness)
        margin = (row_count(valid, self.batch_size, ranks.dtype) + 1).reciprocal()
        ranks = ranks.clamp(margin, 1 - margin)
        losses = F.cross_entropy(logits, targets, reduction="none")
        return self.reduce(losses * -torch.log(1 - ranks), valid)

    def _confidence(self, logits: Tensor) -> Tensor:
        released = self.variant == "released"
        scores = selective_confidence(logits, self.score, double_softmax=released)
        if self.score != "neg_entropy":
            return scores
        entropy = -scores / math.log(max(logits.shape[1], 2))
        return (1 + entropy if released else 1 - entropy).clamp(0.0, 1.0)

    @torch.no_grad()
    def _counted(self, scores: Tensor, valid: Tensor) -> Tensor:
        """Return the number of confidences in each bin, including those of this batch."""
        if self.counts.device != scores.device:
            self.to(scores.device)
        counts = histogram(scores, valid, self.bins)
        if self.histogram == "epoch":
            counts = counts + self.counts
            if self.training:
                self.counts.copy_(counts)
        return counts.to(scores.dtype)


def histogram(scores: Tensor, valid: Tensor, bins: int) -> Tensor:
    """Count valid ``scores`` (N,) in equal bins [a, b) on [0, 1], (bins,); the last includes 1."""
    edges = torch.linspace(0, 1, bins + 1, dtype=scores.dtype, device=scores.device)
    places = torch.bucketize(scores, edges[1:-1], right=True)
    zeros = torch.zeros(bins, dtype=torch.float64, device=scores.device)
    return zeros.index_add_(0, places, valid.to(torch.float64))


def smooth_cdf(values: Tensor, counts: Tensor, smoothness: float) -> Tensor:
    """Return the smoothed distribution function of a histogram on [0, 1] at ``values``, (N,).

    Its steps at the bins' centres are logistic; empty bins count 1e-12.
    """
    half = 0.5 / len(counts)
    centres = torch.linspace(half, 1 - half, len(counts), dtype=values.dtype, device=values.device)
    steps = torch.sigmoid((values.unsqueeze(1) - centres) / smoothness)
    return (steps @ counts.clamp(min=TINY)) / counts.sum().clamp(min=TINY)


def masked_quantile(values: Tensor, valid: Tensor, share: float) -> Tensor:
    """Return the ``share`` quantile of the valid ``values`` (N,), a scalar, interpolated linearly.

    If no value is valid, the result is one of the invalid values.
    """
    order = valid_order(values.detach(), valid)
    place = share * (valid.sum(dtype=values.dtype) - 1).clamp(min=0)
    # Indexing with a scalar tensor would wait for the device; gather does not.
    floor = place.floor()
    ends = torch.stack((floor, place.ceil())).long()
    below, above = values.gather(0, order.gather(0, ends))
    return torch.lerp(below, above, place - floor)
