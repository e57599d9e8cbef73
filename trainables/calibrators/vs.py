"""Vector scaling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import Calibrator, FitReport, chunks
from trainables.calibrators._checks import check_range
from trainables.calibrators._groups import fit_group_temperatures
from trainables.calibrators._minimize import lbfgs
from trainables.calibrators._passes import residuals_in_place
from trainables.calibrators._registry import CALIBRATORS
from trainables.calibrators.objectives import build_objective


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
        self.weight_decay = check_range(
            "weight_decay", weight_decay, 0.0, float("inf"), right_open=True
        )

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        objective = build_objective("ce")
        common, _ = fit_group_temperatures(logits, labels, torch.zeros_like(labels), 1, objective)
        start = common.reciprocal().expand(logits.shape[1]).clone()

        def evaluate(parameters: Sequence[Tensor]) -> tuple[float, Sequence[Tensor]]:
            loss, in_slope, in_bias = mean_loss(parameters, logits, labels)
            away, bias = parameters[0] - start, parameters[1]
            penalty = 0.5 * self.weight_decay * (away.square().sum() + bias.square().sum())
            slopes = in_slope + self.weight_decay * away, in_bias + self.weight_decay * bias
            return loss + float(penalty), slopes

        found, report = lbfgs(evaluate, [start, torch.zeros_like(start)])
        self.slope, self.bias = found
        return report

    def _transform(self, logits: Tensor) -> Tensor:
        slope, bias = self.slope.to(logits.device), self.bias.to(logits.device)
        return F.log_softmax(logits * slope + bias, dim=1)

    def summary(self) -> dict[str, float]:
        """Return smallest, mean and largest slope, and the largest absolute bias."""
        self.require_fitted()
        slope = self.slope
        spread = {"min": slope.min(), "mean": slope.mean(), "max": slope.max()}
        named = {f"slope_{key}": float(value) for key, value in spread.items()}
        return {**named, "bias_max": float(self.bias.abs().max())}


def mean_loss(
    parameters: Sequence[Tensor], logits: Tensor, labels: Tensor
) -> tuple[float, Tensor, Tensor]:
    """Return the mean of ``-log p_y`` and its gradient in slope and bias, both (K,)."""
    slope, bias = parameters
    total, in_slope, in_bias = 0.0, torch.zeros_like(slope), torch.zeros_like(bias)
    for part in chunks(logits):
        z = logits[part].double()
        residuals, losses = residuals_in_place(z * slope + bias, labels[part])
        total += float(losses.sum())
        in_bias += residuals.sum(0)
        in_slope += residuals.mul_(z).sum(0)
    count = len(labels)
    return total / count, in_slope / count, in_bias / count
