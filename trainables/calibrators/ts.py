"""Temperature scaling."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators._groups import fit_group_temperatures
from trainables.calibrators._registry import CALIBRATORS
from trainables.calibrators._temperature import TemperatureCalibrator


@CALIBRATORS.register("ts")
class TemperatureScaling(TemperatureCalibrator):
    """Divides all logits by one temperature T (Guo et al., ICML 2017).

    T is the exact minimiser of the objective, in [0.01, 100], by Newton's method on log T. Rows
    that say nothing about T (constant logits) leave T = 1; rows that a vanishing or an infinite T
    would fit best (every row right, or a single wrong one) end where the objective is flat or on a
    bound, which the report notes. Do not use it where miscalibration differs between classes or
    confidence ranges: one number cannot mend both ends.
    """

    name = "ts"
    state_names = ("temperature",)
    temperature: Tensor

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        one_group = torch.zeros_like(labels)
        self.temperature, report = fit_group_temperatures(
            logits, labels, one_group, 1, self.objective
        )
        return report

    def _temperatures(self, logits: Tensor) -> Tensor:
        return self.temperature.to(logits.device)

    def summary(self) -> dict[str, float]:
        """Return ``temperature`` and what the objective has learned."""
        self.require_fitted()
        return {"temperature": float(self.temperature), **self.objective.state()}
