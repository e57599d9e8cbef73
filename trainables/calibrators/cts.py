"""Class-based temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.calibrators._base import Fit, FitReport, first_argmax
from trainables.calibrators._checks import check_choice, check_range
from trainables.calibrators._groups import TemperatureFit, fit_temperature, fit_temperatures
from trainables.calibrators._minimize import minimize_objective, prepare_objective
from trainables.calibrators._registry import CALIBRATORS
from trainables.calibrators._released import ReleasedRun
from trainables.calibrators._temperature import TemperatureCalibrator, divide, divide_by_exp
from trainables.calibrators._together import RowSets


@CALIBRATORS.register("cts")
class ClassTemperatureScaling(TemperatureCalibrator):
    """One temperature for each class (Frenkel and Goldberger, EUSIPCO 2021).

    With ``assignment="prediction"``, a row is divided by the temperature of its predicted class:
    the order of the row stays. Each temperature is fitted on the rows predicted as its class and
    pulled towards the common temperature, so that a class with few rows, or rows that are all
    right, stays near it. With ``assignment="logit"``, logit k is divided by T_k as in the
    class-wise scaling paper and its code; that re-ranks classes and changes accuracy. The default
    is ``prediction`` because it keeps accuracy; take ``logit`` to compare with published figures.
    Do not use either with a handful of rows a class.

    Args:
        assignment: ``prediction`` or ``logit``.
        variant: For ``logit``: ``paper`` fits to convergence; ``released`` repeats the released
            optimiser run, which may stop short. ``prediction`` has no released code.
        shrinkage: Pull of ``prediction`` towards the common log temperature, worth this many rows
            at one squared unit; 0 lets classes go to their own optimum, in [0.01, 100].

    Raises:
        ValueError: If an argument is out of its range, or ``released`` is asked of ``prediction``.
    """

    name = "cts"
    joins_pass = True
    state_names = ("temperatures",)
    temperatures: Tensor

    def __init__(
        self, *, assignment: str = "prediction", variant: str = "paper", shrinkage: float = 1.0
    ) -> None:
        super().__init__()
        self.assignment = check_choice("assignment", assignment, ("prediction", "logit"))
        self.variant = check_choice("variant", variant, ("paper", "released"))
        self.shrinkage = check_range("shrinkage", shrinkage, 0.0, float("inf"), right_open=True)
        if (self.assignment, self.variant) == ("prediction", "released"):
            raise ValueError("variant='released' exists for assignment='logit' only")
        self.preserves_accuracy = self.assignment == "prediction"
        self.joins_pass = self.assignment == "prediction"

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if self.assignment == "prediction":
            return self._fit_many([Fit(self, 0)], RowSets(logits, labels))[0]
        if self.variant == "released":
            return self._fit_as_released(logits, labels)
        return self._fit_by_logit(logits, labels)

    @classmethod
    def _fit_many(
        cls, fits: Sequence[Fit[ClassTemperatureScaling]], table: RowSets
    ) -> list[FitReport]:
        if not fits[0].calibrator.joins_pass:
            return super()._fit_many(fits, table)
        objectives = [fit.calibrator.objective for fit in fits]
        commons = table.temperatures(fits, objectives)
        wanted = [
            TemperatureFit(
                objective, table.masks[fit.rows], float(common.log()), fit.calibrator.shrinkage
            )
            for fit, objective, (common, _) in zip(fits, objectives, commons, strict=True)
        ]
        classes = table.logits.shape[1]
        found = fit_temperatures(table.logits, table.labels, table.winners, classes, wanted)
        for fit, (temperatures, _) in zip(fits, found, strict=True):
            fit.calibrator.temperatures = temperatures
        return [report for _, report in found]

    def _fit_by_logit(self, logits: Tensor, labels: Tensor) -> FitReport:
        common, _ = fit_temperature(logits, labels, self.objective)
        ones = torch.ones(logits.shape[1], dtype=torch.float64, device=logits.device)
        prepare_objective(divide, ones, logits, labels, self.objective)
        start = common.log() * ones
        found, report = minimize_objective(divide_by_exp, [start], logits, labels, self.objective)
        self.temperatures = found[0].exp()
        return report

    def _fit_as_released(self, logits: Tensor, labels: Tensor) -> FitReport:
        start = torch.ones(logits.shape[1], device=logits.device)
        run = ReleasedRun(divide, [start], logits, labels, self.objective)
        report = run.lbfgs()
        self.temperatures = start.detach().double()
        return report

    def _temperatures(self, logits: Tensor) -> Tensor:
        return self.temperatures.to(logits.device)[first_argmax(logits)]

    def _transform(self, logits: Tensor) -> Tensor:
        if self.assignment == "prediction":
            return super()._transform(logits)
        return divide([self.temperatures.to(logits.device)], logits)

    def summary(self) -> dict[str, float]:
        """Return smallest, mean and largest temperature and what the objective has learned."""
        self.require_fitted()
        t = self.temperatures
        spread = {"min": t.min(), "mean": t.mean(), "max": t.max()}
        named = {f"temperature_{key}": float(value) for key, value in spread.items()}
        return {**named, **self.objective.state()}
