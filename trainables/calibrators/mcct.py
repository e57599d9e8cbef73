from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, FitReport
from trainables.calibrators._minimize import MappedLoss, lbfgs
from trainables.calibrators._mixing import MixedCalibrator
from trainables.calibrators.objectives import build_objective
from trainables.common.fields import fitted
from trainables.common.logit_rows import find_masked, raise_masked

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
        classes = logits.shape[1]
        start = torch.zeros(2, classes, dtype=torch.float64, device=logits.device)
        start[0, 0] = 1  # The identity.
        loss = MappedLoss(transform, logits, labels, build_objective("ce"))
        weights = loss.row_weights(start.new_zeros(len(labels)))
        evaluate = partial(loss.evaluate, weights=weights)
        (self.steps,), report = lbfgs(evaluate, [start], bounds=[(0.0, None)] * start.numel())
        return report

    def _transform_alone(self, logits: Tensor) -> Tensor:
        return transform([self.steps.to(logits.device)], logits)

    def _summary(self) -> dict[str, float]:
        slopes, biases = self.steps.cumsum(1)
        return {
            "slope_min": float(slopes[0]),
            "slope_max": float(slopes[-1]),
            "bias_range": float(biases[-1] - biases[0]),
        }


def transform(parameters: Sequence[Tensor], logits: Tensor) -> Tensor:
    """Return the log-probabilities (N, K) of logits, given steps of slopes and biases, (2, K)."""
    masked = find_masked(logits)
    ascending, order = raise_masked(logits, masked).sort(dim=1, stable=True)
    slopes, biases = parameters[0].cumsum(1)
    mapped = slopes * (ascending - ascending[:, :1]) + biases
    rows = torch.zeros_like(mapped).scatter(1, order, mapped)
    return F.log_softmax(rows if masked is None else rows.masked_fill(masked, IMPOSSIBLE), dim=1)
