"""The numbers behind a risk-coverage curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.metrics._scores import ArrayLike, Scores

__all__ = ["RiskCoverageCurve", "risk_coverage_curve"]


@dataclass(frozen=True, eq=False)
class RiskCoverageCurve:
    """The share of errors among the most confident rows, for each number of them.

    Attributes:
        coverage: Share of rows that are kept, (N,), from 1/N to 1.
        risk: Share of errors among those, (N,), in [0, 1]; the last is the error of all rows.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]

    @property
    def area(self) -> float:
        """Area under the curve (AURC), the mean risk over all coverages: lower is better."""
        return float(self.risk.mean())


def risk_coverage_curve(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> RiskCoverageCurve:
    """Return the errors that are left when rows of low top-label confidence are turned away.

    Rows of equal confidence have no order, so their errors are spread evenly over them: that is
    the mean over all orders.

    Source: Geifman and El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017;
    the area: Geifman, Uziel and El-Yaniv, Bias-Reduced Uncertainty Estimation for Deep Neural
    Classifiers, ICLR 2019.

    Args:
        logits: See ``calibration_report``.
        probs: See ``calibration_report``.
        labels: See ``calibration_report``.

    Raises:
        ValueError: See ``calibration_report``.
    """
    scores = Scores(logits, probs, labels)
    confidence, order = scores.confidence.sort(descending=True)
    wrong = 1 - scores.correct[order]
    _, group, sizes = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    totals = torch.zeros(len(sizes), dtype=wrong.dtype, device=wrong.device)
    even = totals.index_add(0, group, wrong) / sizes
    kept = torch.arange(1, scores.num_rows + 1, dtype=wrong.dtype, device=wrong.device)
    risk = even[group].cumsum(0) / kept
    return RiskCoverageCurve((kept / scores.num_rows).cpu().numpy(), risk.cpu().numpy())
