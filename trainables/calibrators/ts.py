import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS, FitReport, by_block, first_argmax
from trainables.calibrators._released import released_temperatures
from trainables.calibrators._temperature import TemperatureCalibrator, divide, fit_temperature
from trainables.common.fields import choice, fitted
from trainables.metrics import Binned, width_edges

GRID = range(1, 101)
ECE_BINS = 15


@CALIBRATORS.register("ts")
class TemperatureScaling(TemperatureCalibrator):
    """Divides all logits by one temperature T (Guo et al., ICML 2017).

    T is the exact minimiser of the objective, in [0.01, 100], by Newton's method on log T. Constant
    logits do not depend on T and give T = 1. If every row is right, the fit stops when the loss is
    below 1e-5; if an infinite T would be best (for example with only one row, if it is predicted
    wrongly), T ends on the bound. The report notes both. Do not use it if miscalibration differs
    between classes or confidence ranges, which one number cannot correct.

    Args:
        selection: ``objective`` fits T as described above; ``ece`` chooses the T with the smallest
            15-bin ECE on the fitting rows from the grid 0.1, 0.2 ... 10 and ignores the objective,
            as in the code of the focal and margin papers (of equal ones, the smallest T);
            ``training_ece`` does the same on the network's training rows, as in the AURC paper.
        variant: For ``objective``: ``paper`` fits to convergence; ``released`` repeats the
            fixed-length LBFGS run of the class-wise scaling code, which may stop up to a percent
            before the optimum, and far from it with ``ls`` and ``fl``. Use ``released`` only to
            compare with published figures.
    """

    transfers = True
    selection: str = choice(default="objective", choices=("objective", "ece", "training_ece"))
    variant: str = choice(default="paper", choices=("paper", "released"))
    temperature: Tensor = fitted()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fits_on_training = self.selection == "training_ece"

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        report = self._fit_in_units(logits, labels)
        self.temperature = self.temperature * self.logit_scale.unit
        return report

    def _fit_in_units(self, logits: Tensor, labels: Tensor) -> FitReport:
        if self.selection != "objective":
            return self._fit_by_ece(logits, labels)
        if self.variant == "released":
            self.temperature, report = released_temperatures(1, logits, labels, self.objective)
            return report
        self.temperature, report = fit_temperature(logits, labels, self.objective)
        return report

    def _fit_by_ece(self, logits: Tensor, labels: Tensor) -> FitReport:
        correct = (first_argmax(logits) == labels).double()[None]
        edges = width_edges(ECE_BINS, torch.float32, logits.device)
        sure = (_confidences(logits, t / 10)[None] for t in GRID)
        errors = torch.cat([Binned(scores, correct, edges).error() for scores in sure])
        self.temperature = (errors.argmin() + 1).reshape(1).double() / 10
        return FitReport(True, len(GRID), float(errors.min()), "objective is the ECE on a grid")

    def _temperatures(self, logits: Tensor) -> Tensor:
        return self.temperature.to(logits.device) / self.logit_scale.unit

    def _summary(self) -> dict[str, float]:
        return {"temperature": float(self.temperature / self.logit_scale.unit)}


def _confidences(logits: Tensor, temperature: float) -> Tensor:
    t = [torch.tensor(temperature)]
    return by_block(logits, lambda rows: divide(t, rows.double()).amax(1)).exp()
