"""Vector scaling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import Calibrator, Fit, FitReport, chunks
from trainables.calibrators._checks import check_range
from trainables.calibrators._groups import fit_temperature
from trainables.calibrators._minimize import lbfgs
from trainables.calibrators._passes import residuals_in_place
from trainables.calibrators._registry import CALIBRATORS
from trainables.calibrators._together import RowSets
from trainables.calibrators._vector_fit import VectorFit, fit_vectors
from trainables.calibrators.objectives import build_objective

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
    joins_pass = True
    state_names = ("slope", "bias")
    slope: Tensor
    bias: Tensor

    def __init__(self, *, weight_decay: float = 0.0001) -> None:
        self.weight_decay = check_range(
            "weight_decay", weight_decay, 0.0, float("inf"), right_open=True
        )

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if logits.shape[1] <= NEWTON_CLASSES:
            return self._fit_many([Fit(self, 0)], RowSets(logits, labels))[0]
        common, _ = fit_temperature(logits, labels, build_objective("ce"))
        return self._fit_from(common.reciprocal().expand(logits.shape[1]), logits, labels)

    @classmethod
    def _fit_many(cls, fits: Sequence[Fit[VectorScaling]], table: RowSets) -> list[FitReport]:
        classes = table.logits.shape[1]
        if classes > NEWTON_CLASSES:
            return super()._fit_many(fits, table)
        found = table.temperatures(fits, [build_objective("ce")] * len(fits))
        starts = [common.reciprocal().expand(classes) for common, _ in found]
        reports: dict[int, FitReport] = {}
        for positions, rows in table.passes(fits):
            wanted = [
                VectorFit(mask, starts[position], fits[position].calibrator.weight_decay)
                for position, mask in zip(positions, rows.masks, strict=True)
            ]
            solved = fit_vectors(rows.logits, rows.labels, wanted)
            for position, (slope, bias, report) in zip(positions, solved, strict=True):
                fitted = fits[position].calibrator
                fitted.slope, fitted.bias, reports[position] = slope, bias, report
        return [reports[position] for position in range(len(fits))]

    def _fit_from(self, start: Tensor, logits: Tensor, labels: Tensor) -> FitReport:
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
