"""Errors that remain when rows of low confidence are rejected, as terms per row."""

import math

from trainables.common.later import Tensor, torch


class Ranked:
    """Rows sorted by confidence.

    Each metric is the mean over all orders of rows with equal confidence, except ``coverage_at``,
    whose threshold accepts or rejects them together.

    All methods return terms (N,), in the order of the rows. Their mean is the metric, and their
    standard deviation over sqrt(N) is its standard error (delta method).

    Args:
        confidence: (N,), float64.
        correct: (N,), 1.0 where the prediction is right, else 0.0.
    """

    def __init__(self, confidence: Tensor, correct: Tensor) -> None:
        ordered, self._order = confidence.sort(descending=True, stable=True)
        self._wrong = 1 - correct[self._order]
        _, self._group, self._sizes = ordered.unique_consecutive(
            return_inverse=True, return_counts=True
        )
        self._rows = len(ordered)
        self._rank = torch.arange(1, self._rows + 1, dtype=torch.float64, device=ordered.device)
        self._even = self._level(self._wrong)
        self._errors = self._even.cumsum(0)

    def aurc(self) -> Tensor:
        """Return terms of AURC, the mean over k of the error rate of the k most confident rows."""
        risk = self._errors / self._rank
        weight, pull = _from_the_end(1 / self._rank), _from_the_end(risk / self._rank)
        return self._placed(self._level(risk - pull) + self._wrong * self._level(weight))

    def e_aurc(self) -> Tensor:
        """Return terms of AURC minus the AURC of the best order, in which errors come last."""
        correct = 1 - self._wrong
        return self.aurc() - self._placed(Ranked(correct, correct).aurc())

    def augrc(self) -> Tensor:
        """Return terms of the share of rows that are kept and wrong, averaged over coverages.

        Traub et al. (arXiv:2407.01032): ``(1 - AUROC) acc (1 - acc) + (1 - acc)^2 / 2`` with the
        AUROC of confidence for correctness.
        """
        after = self._level((self._rows - self._rank + 0.5) / self._rows)
        before = self._level((self._errors - self._even / 2) / self._rows)
        kept = self._wrong * after
        return self._placed(kept + before - kept.mean())

    def risk_at(self, coverage: float) -> Tensor:
        """Return terms of the error rate of the most confident share ``coverage`` of the rows."""
        kept = min(max(math.ceil(coverage * self._rows - 1e-9), 1), self._rows)
        inside, margin = self._level((self._rank <= kept).double()), self._risk_near(kept)
        return self._placed(inside * (self._wrong - margin) * (self._rows / kept) + margin)

    def coverage_at(self, risk: float) -> Tensor:
        """Return terms of the largest coverage at which the error rate is at most ``risk``."""
        ends = self._sizes.cumsum(0)
        allowed = ends[self._errors[ends - 1] <= (risk + 1e-12) * ends]
        kept = int(allowed[-1]) if len(allowed) else 0
        if kept in (0, self._rows):
            return torch.full_like(self._wrong, kept / self._rows)
        own = self._errors[kept - 1] / kept
        slope = (self._risk_near(kept) - own).clamp(min=risk)
        return self._placed((self._rank <= kept) * (1 - (self._wrong - own) / slope))

    def _risk_near(self, rank: int) -> Tensor:
        """Return the error rate of the rows around a rank."""
        reach = math.ceil(self._rows ** (2 / 3) / 2)
        return self._even[max(rank - reach, 0) : rank + reach].mean()

    def _level(self, values: Tensor) -> Tensor:
        """Return values (N,), averaged over rows of equal confidence."""
        sums = values.new_zeros(len(self._sizes)).index_add_(0, self._group, values)
        return (sums / self._sizes)[self._group]

    def _placed(self, values: Tensor) -> Tensor:
        return torch.empty_like(values).index_copy_(0, self._order, values)


def _from_the_end(values: Tensor) -> Tensor:
    return values.flip(0).cumsum(0).flip(0)
