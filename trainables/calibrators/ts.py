"""Temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.calibrators._base import Fit, FitReport, by_chunk, first_argmax
from trainables.calibrators._checks import check_choice
from trainables.calibrators._registry import CALIBRATORS
from trainables.calibrators._released import ReleasedRun
from trainables.calibrators._temperature import TemperatureCalibrator, divide
from trainables.calibrators._together import RowSets
from trainables.metrics._binning import binned_error, width_edges

GRID = range(1, 101)
ECE_BINS = 15


@CALIBRATORS.register("ts")
class TemperatureScaling(TemperatureCalibrator):
    """Divides all logits by one temperature T (Guo et al., ICML 2017).

    T is the exact minimiser of the objective, in [0.01, 100], by Newton's method on log T. Rows
    that say nothing about T (constant logits) leave T = 1; where every row is right, T stops as
    soon as the loss is below 1e-5; where an infinite T would fit best (a single wrong row), it ends
    on the bound. The report notes both. Do not use it where miscalibration differs between classes
    or confidence ranges: one number cannot mend both ends.

    Args:
        selection: ``objective`` fits T as said above; ``ece`` takes the T with the smallest 15-bin
            ECE on the fitting rows from the grid 0.1, 0.2 ... 10, whatever the objective, as the
            focal and margin papers' code does (ties go to the smallest T).
        variant: ``paper`` fits to convergence; ``released`` repeats the fixed-length LBFGS run of
            the class-wise scaling code, which may stop up to a percent short of the optimum, and
            far from it with ``ls`` and ``fl``. The default is the one that is right; the other is
            for comparison with published figures.

    Raises:
        ValueError: If an argument is out of its range.
    """

    name = "ts"
    joins_pass = True
    state_names = ("temperature",)
    temperature: Tensor

    def __init__(self, *, selection: str = "objective", variant: str = "paper") -> None:
        super().__init__()
        self.selection = check_choice("selection", selection, ("objective", "ece"))
        self.variant = check_choice("variant", variant, ("paper", "released"))
        self.joins_pass = (self.selection, self.variant) == ("objective", "paper")

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if self.selection == "ece":
            return self._fit_by_ece(logits, labels)
        if self.variant == "released":
            return self._fit_as_released(logits, labels)
        return self._fit_many([Fit(self, 0)], RowSets(logits, labels))[0]

    @classmethod
    def _fit_many(cls, fits: Sequence[Fit[TemperatureScaling]], table: RowSets) -> list[FitReport]:
        if not fits[0].calibrator.joins_pass:
            return super()._fit_many(fits, table)
        found = table.temperatures(fits, [fit.calibrator.objective for fit in fits])
        for fit, (temperature, _) in zip(fits, found, strict=True):
            fit.calibrator.temperature = temperature
        return [report for _, report in found]

    def _fit_as_released(self, logits: Tensor, labels: Tensor) -> FitReport:
        start = torch.ones(1, device=logits.device)
        report = ReleasedRun(divide, [start], logits, labels, self.objective).lbfgs()
        self.temperature = start.detach().double()
        return report

    def _fit_by_ece(self, logits: Tensor, labels: Tensor) -> FitReport:
        correct = (first_argmax(logits) == labels).double()[None]
        edges = width_edges(ECE_BINS, torch.float32, logits.device)
        errors = torch.cat(
            [binned_error(_confidences(logits, t / 10)[None], correct, edges) for t in GRID]
        )
        self.temperature = (errors.argmin() + 1).reshape(1).double() / 10
        return FitReport(True, len(GRID), float(errors.min()), "objective is the ECE on a grid")

    def _temperatures(self, logits: Tensor) -> Tensor:
        return self.temperature.to(logits.device)

    def summary(self) -> dict[str, float]:
        """Return ``temperature`` and what the objective has learned."""
        self.require_fitted()
        return {"temperature": float(self.temperature), **self.objective.state()}


def _confidences(logits: Tensor, temperature: float) -> Tensor:
    return by_chunk(
        logits, lambda rows: divide([torch.tensor(temperature)], rows.double()).amax(1)
    ).exp()
