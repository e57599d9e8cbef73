import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, Calibrator, FitReport
from trainables.calibrators._minimize import lbfgs
from trainables.calibrators._temperature import fit_temperature
from trainables.calibrators._vector import VectorLoss, newton
from trainables.calibrators.objectives import build_objective
from trainables.common.checks import check_number

NEWTON_CLASSES = 200  # With more, the curvature costs more than the steps that it saves.


@CALIBRATORS.register("vs")
class VectorScaling(Calibrator):
    """``softmax(a * z + b)`` with a slope and a bias a class (Guo et al., ICML 2017).

    It changes accuracy. The likelihood is convex and fitted to its minimum, starting at the best
    temperature. Do not use it with few rows a class. Rows are read as they are: logits shifted by a
    constant a row give another fit.

    Args:
        weight_decay: Penalty, >= 0: half the squared biases and the squared distances of
            the slopes from the best common slope. 0 is the published method, which follows
            noise where a class has some fifty rows; the default costs nothing where rows abound.

    Raises:
        ValueError: If ``weight_decay`` is negative.
    """

    name = "vs"
    state_names = ("slope", "bias")
    slope: Tensor
    bias: Tensor

    def __init__(self, *, weight_decay: float = 0.0001) -> None:
        self.weight_decay = check_number("weight_decay", weight_decay, 0.0)

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        common, _ = fit_temperature(logits, labels, build_objective("ce"))
        slopes = common.reciprocal().expand(logits.shape[1])
        start = torch.cat([slopes, torch.zeros_like(slopes)])
        loss = VectorLoss(logits, labels, start, self.weight_decay)
        if logits.shape[1] <= NEWTON_CLASSES:
            found, report = newton(loss.with_curvature, start)
        else:
            (found,), report = lbfgs(loss, [start])
        self.slope, self.bias = (part.clone() for part in found.chunk(2))
        return report

    def _transform(self, logits: Tensor) -> Tensor:
        slope, bias = self.slope.to(logits.device), self.bias.to(logits.device)
        return F.log_softmax(logits * slope + bias, dim=1)

    def _summary(self) -> dict[str, float]:
        slope = self.slope
        spread = {"min": slope.min(), "mean": slope.mean(), "max": slope.max()}
        named = {f"slope_{key}": float(value) for key, value in spread.items()}
        return {**named, "bias_max": float(self.bias.abs().max())}
