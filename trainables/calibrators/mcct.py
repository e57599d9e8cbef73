from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, FitReport
from trainables.calibrators._minimize import lbfgs, residuals_in_place
from trainables.calibrators._mixing import MixedCalibrator
from trainables.common.fields import fitted
from trainables.common.logit_rows import find_masked, raise_masked, row_blocks

IMPOSSIBLE = -1e6  # Logit of a masked class during the fit.


@CALIBRATORS.register("mcct")
class MonotonicConstrainedTransformation(MixedCalibrator):
    """Gives each rank within a row its own slope and bias; neither falls with the rank.

    Zhang et al., Instance-wise monotonic calibration by constrained transformation, UAI 2025, arXiv
    2507.06516 (MCCT). The logits of a row in ascending order become ``t_i z_i + b_i`` with
    ``0 <= t_1 <= ... <= t_K`` and ``b_1 <= ... <= b_K``, fitted to the likelihood, which is convex
    in t and b. The identity is allowed, so that the likelihood of fitting rows never falls. Here
    each row is first moved to a smallest logit of 0, because growing slopes keep the order of
    positive values only. Its 2 K parameters overfit a few hundred rows, so it is mixed with
    temperature scaling; see ``MixedCalibrator``.
    """

    preserves_accuracy = True
    steps: Tensor = fitted()

    def _fit_alone(self, logits: Tensor, labels: Tensor) -> FitReport:
        start = torch.zeros(2, logits.shape[1], dtype=torch.float64, device=logits.device)
        start[0, 0] = 1  # The identity.
        loss = RankedLoss(logits, labels)
        (self.steps,), report = lbfgs(loss.evaluate, [start], bounds=[(0.0, None)] * start.numel())
        return report

    def _transform_alone(self, logits: Tensor) -> Tensor:
        return transform(self.steps.to(logits.device), logits)

    def _summary(self) -> dict[str, float]:
        slopes, biases = self.steps.cumsum(1)
        return {
            "share": float(self.share),
            "slope_min": float(slopes[0]),
            "slope_max": float(slopes[-1]),
            "bias_range": float(biases[-1] - biases[0]),
        }


class RankedLoss:
    """Mean negative log-likelihood of labels (N,), whose logits (N, K) are sorted only once."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        masked = find_masked(logits)
        self._ascending, order = raise_masked(logits, masked).sort(dim=1, stable=True)
        self._ranks = (order == labels.unsqueeze(1)).long().argmax(1)
        self._masked = None if masked is None else masked.gather(1, order)

    def evaluate(self, parameters: Sequence[Tensor]) -> tuple[float, Sequence[Tensor]]:
        """Return the loss and its gradient (2, K) by the increases of slope and bias over ranks."""
        total, slopes = 0.0, torch.zeros_like(parameters[0])
        for part in row_blocks(self._ascending):
            values, ranks = above_smallest(self._ascending[part].double()), self._ranks[part]
            mapped = by_rank(parameters[0], values)
            if self._masked is not None:
                mapped.masked_fill_(self._masked[part], IMPOSSIBLE)
            residuals, losses = residuals_in_place(mapped, ranks)
            total += float(losses.sum())
            slopes[1] += residuals.sum(0)
            slopes[0] += residuals.mul_(values).sum(0)
        count = len(self._ranks)
        return total / count, [slopes.flip(1).cumsum(1).flip(1) / count]


def above_smallest(ascending: Tensor) -> Tensor:
    """Return sorted rows (N, K) with a smallest value of 0."""
    return ascending - ascending[:, :1]


def by_rank(steps: Tensor, values: Tensor) -> Tensor:
    """Return sorted values (N, K) times the slope of their rank plus its bias."""
    slopes, biases = steps.cumsum(1)
    return torch.addcmul(biases, slopes, values)


def transform(steps: Tensor, logits: Tensor) -> Tensor:
    """Return the log-probabilities (N, K) of logits, given steps of slopes and biases, (2, K)."""
    masked = find_masked(logits)
    ascending, order = raise_masked(logits, masked).sort(dim=1, stable=True)
    mapped = by_rank(steps, above_smallest(ascending))
    rows = torch.empty_like(mapped).scatter_(1, order, mapped)
    return F.log_softmax(rows if masked is None else rows.masked_fill(masked, IMPOSSIBLE), dim=1)
