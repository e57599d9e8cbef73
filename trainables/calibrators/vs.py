"""Vector scaling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import Calibrator, FitReport
from trainables.calibrators._checks import check_range
from trainables.calibrators._groups import fit_group_temperatures
from trainables.calibrators._minimize import minimize_objective
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

        def penalty(parameters: Sequence[Tensor]) -> Tensor:
            slope, bias = parameters
            return 0.5 * self.weight_decay * ((slope - start).square() + bias.square()).sum()

        found, report = minimize_objective(
            scale_and_shift,
            [start, torch.zeros_like(start)],
            logits,
            labels,
            objective,
            penalty=penalty,
        )
        self.slope, self.bias = found
        return report

    def _transform(self, logits: Tensor) -> Tensor:
        return scale_and_shift([self.slope.to(logits.device), self.bias.to(logits.device)], logits)

    def summary(self) -> dict[str, float]:
        """Return smallest, mean and largest slope, and the largest absolute bias."""
        self.require_fitted()
        slope = self.slope
        spread = {"min": slope.min(), "mean": slope.mean(), "max": slope.max()}
        named = {f"slope_{key}": float(value) for key, value in spread.items()}
        return {**named, "bias_max": float(self.bias.abs().max())}


def scale_and_shift(parameters: Sequence[Tensor], logits: Tensor) -> Tensor:
    """Return the log-probabilities of ``a * z + b``."""
    slope, bias = parameters
    return F.log_softmax(logits * slope + bias, dim=1)
