from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, Calibrator, FitReport, spread
from trainables.calibrators._shrinkage import VARIANTS, fit_shrunk
from trainables.calibrators._vector import TOLERANCE, VectorFit
from trainables.common.fields import choice, fitted, number


@CALIBRATORS.register("vs")
class VectorScaling(Calibrator):
    """``softmax(a * z + b)`` with a slope and a bias per class (Guo et al., ICML 2017).

    Accuracy may change. The likelihood is convex and fitted to its optimum, starting at the best
    temperature. Do not use it with few rows per class. Adding a constant to a row's logits changes
    the fit.

    Args:
        weight_decay: Weight, >= 0, of half the squared biases and distances of the slopes from the
            best common slope, in the units of the mean loss.
        variant: ``shrunk`` (the default) also pulls the map towards the best temperature, with the
            strength that is best on held-out fitting rows; if these do not improve, the map is
            temperature scaling. ``paper`` has only the penalty (with 0 the published method); with
            ten rows per class it is worse than no calibration.
    """

    weight_decay: float = number(default=0.0001, low=0.0)
    variant: str = choice(default="shrunk", choices=VARIANTS)
    slope: Tensor = fitted()
    bias: Tensor = fitted()

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if self.variant == "paper":
            found, report = self._problem(logits, labels).minimize()
        else:
            found, report = fit_shrunk(self._problem, logits, labels, TOLERANCE)
        self.slope, self.bias = (part.clone() for part in found.chunk(2))
        return report

    def _problem(self, logits: Tensor, labels: Tensor) -> VectorFit:
        return VectorFit(logits, labels, self.weight_decay)

    def _transform(self, logits: Tensor) -> Tensor:
        slope, bias = self.slope.to(logits.device), self.bias.to(logits.device)
        return F.log_softmax(logits * slope + bias, dim=1)

    def _summary(self) -> dict[str, float]:
        return {**spread("slope", self.slope), "bias_max": float(self.bias.abs().max())}
