"""Temperature scaling with a floor."""

import math

import torch
from torch import Tensor

from calsweep.plugins import CALIBRATORS, Calibrator, FitReport, fit_temperature, fitted, number


@CALIBRATORS.register("floored")
class FlooredTemperatureScaling(Calibrator):
    """Temperature scaling mixed with the uniform distribution: no class is ruled out."""

    preserves_accuracy = True
    floor: float = number(default=0.01, low=0.0, high=1.0, open_high=True)
    temperature: Tensor = fitted()

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        self.temperature, report = fit_temperature(logits, labels)
        return report

    def _transform(self, logits: Tensor) -> Tensor:
        scaled = (logits / self.temperature.to(logits.device)).log_softmax(dim=1)
        uniform = scaled.new_tensor(self.floor / logits.shape[1]).log()
        return torch.logaddexp(scaled + math.log1p(-self.floor), uniform)

    def _summary(self) -> dict[str, float]:
        return {"temperature": float(self.temperature)}
