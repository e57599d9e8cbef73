from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS, FitReport, first_argmax, spread
from trainables.calibrators._minimize import MappedLoss, TemperaturePasses, minimize
from trainables.calibrators._released import released_temperatures
from trainables.calibrators._temperature import (
    TemperatureCalibrator,
    TemperatureFit,
    divide,
    fit_temperature,
)
from trainables.common.fields import choice, fitted, number


@CALIBRATORS.register("cts")
class ClassTemperatureScaling(TemperatureCalibrator):
    """One temperature for each class (Frenkel and Goldberger, EUSIPCO 2021).

    With ``assignment="prediction"``, a row is divided by the temperature of its predicted class,
    which keeps its order. Each temperature is fitted on the rows with this prediction and pulled
    towards the common temperature, so that a class with few rows, or only right rows, stays near
    it. With ``assignment="logit"``, logit k is divided by T_k as in the class-wise scaling paper
    and its code; this may change the order of classes. The default is ``prediction`` because it
    keeps accuracy; use ``logit`` to compare with published figures. Do not use either with a
    handful of rows per class.

    Args:
        assignment: ``prediction`` or ``logit``.
        variant: For ``logit``: ``paper`` fits to convergence; ``released`` repeats the released
            optimiser run, which may stop too early. ``prediction`` has no released code.
        shrinkage: Weight s of the penalty for ``prediction``: each class adds
            ``s / 2 * (log T_c - log T_common)^2`` to the summed loss. With 0, each class has its
            own optimum in [0.01, 100]; with ten rows per class this is worse than no calibration.

    Raises:
        ValueError: If ``released`` is combined with ``prediction``.
    """

    assignment: str = choice(default="prediction", choices=("prediction", "logit"))
    variant: str = choice(default="paper", choices=("paper", "released"))
    shrinkage: float = number(default=30.0, low=0.0)
    temperatures: Tensor = fitted()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.assignment, self.variant) == ("prediction", "released"):
            raise ValueError("variant='released' needs assignment='logit'")
        self.preserves_accuracy = self.assignment == "prediction"

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if self.assignment == "prediction":
            return self._fit_by_prediction(logits, labels)
        if self.variant == "released":
            self.temperatures, report = released_temperatures(
                logits.shape[1], logits, labels, self.objective
            )
            return report
        return self._fit_by_logit(logits, labels)

    def _fit_by_prediction(self, logits: Tensor, labels: Tensor) -> FitReport:
        passes = TemperaturePasses(logits, labels, self.objective)
        common, _ = TemperatureFit(passes).solve()
        self.temperatures, report = TemperatureFit(
            passes,
            groups=first_argmax(logits),
            num_groups=logits.shape[1],
            prior_log=float(common.log()),
            shrinkage=self.shrinkage,
        ).solve()
        return report

    def _fit_by_logit(self, logits: Tensor, labels: Tensor) -> FitReport:
        common, _ = fit_temperature(logits, labels, self.objective)
        ones = torch.ones(logits.shape[1], dtype=torch.float64, device=logits.device)
        MappedLoss(divide, logits, labels, self.objective).prepare(ones, lambda after: after)
        loss = MappedLoss(_divide_by_exp, logits, labels, self.objective)
        found, report = minimize(loss, [common.log() * ones])
        self.temperatures = found[0].exp()
        return report

    def _temperatures(self, logits: Tensor) -> Tensor:
        return self.temperatures.to(logits.device)[first_argmax(logits)]

    def _transform(self, logits: Tensor) -> Tensor:
        if self.assignment == "prediction":
            return super()._transform(logits)
        return divide([self.temperatures.to(logits.device)], logits)

    def _summary(self) -> dict[str, float]:
        return spread("temperature", self.temperatures)


def _divide_by_exp(log_temperatures: Sequence[Tensor], logits: Tensor) -> Tensor:
    return divide([log_temperatures[0].exp()], logits)
