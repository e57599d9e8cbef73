"""Vector scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import Calibrator, Fit, FitReport, chunks
from trainables.calibrators._checks import check_choice, check_range
from trainables.calibrators._groups import fit_temperature
from trainables.calibrators._minimize import lbfgs
from trainables.calibrators._passes import residuals_in_place
from trainables.calibrators._registry import CALIBRATORS
from trainables.calibrators._shrinkage import choose_pull, validation_folds
from trainables.calibrators._together import RowSets
from trainables.calibrators._vector_fit import VectorFit, fit_vectors
from trainables.calibrators.objectives import build_objective
from trainables.calibrators.ts import TemperatureScaling

EQUAL_NOTE = "temperature scaling: on held-out rows slopes and biases gain nothing"
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
        variant: ``shrunk`` adds to the penalty what held-out fitting rows ask for, up to the best
            temperature itself; ``paper`` does not, and with ten rows a class it may be far worse
            than no calibration. The default is the one that never is.

    Raises:
        ValueError: If ``weight_decay`` is negative, or there is no such variant.
    """

    name = "vs"
    joins_pass = True
    state_names = ("slope", "bias")
    slope: Tensor
    bias: Tensor

    def __init__(self, *, weight_decay: float = 0.0001, variant: str = "shrunk") -> None:
        self.weight_decay = check_range(
            "weight_decay", weight_decay, 0.0, float("inf"), right_open=True
        )
        self.variant = check_choice("variant", variant, ("shrunk", "paper"))

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if logits.shape[1] <= NEWTON_CLASSES:
            return self._fit_many([Fit(self, 0)], RowSets(logits, labels))[0]
        common, _ = fit_temperature(logits, labels, build_objective("ce"))
        start = common.reciprocal().expand(logits.shape[1])
        return self._fit_from(start, self._weight(logits, labels), logits, labels)

    @classmethod
    def _fit_many(cls, fits: Sequence[Fit[VectorScaling]], table: RowSets) -> list[FitReport]:
        classes = table.logits.shape[1]
        if classes > NEWTON_CLASSES:
            return super()._fit_many(fits, table)
        found = table.temperatures(fits, [build_objective("ce")] * len(fits))
        starts = [temperature.reciprocal().expand(classes) for temperature, _ in found]
        weights = [fit.calibrator._weight(*table.of(fit.rows)) for fit in fits]
        reports: dict[int, FitReport] = {}
        moving = [position for position, weight in enumerate(weights) if math.isfinite(weight)]
        for position in set(range(len(fits))).difference(moving):
            fitted, rows = fits[position].calibrator, table.of(fits[position].rows)
            reports[position] = fitted._stay(starts[position], *rows)
        for chosen, common in table.passes([fits[position] for position in moving]):
            positions = [moving[index] for index in chosen]
            wanted = [
                VectorFit(mask, starts[position], weights[position])
                for position, mask in zip(positions, common.masks, strict=True)
            ]
            solved = fit_vectors(common.logits, common.labels, wanted)
            for position, (slope, bias, report) in zip(positions, solved, strict=True):
                fitted = fits[position].calibrator
                fitted.slope, fitted.bias, reports[position] = slope, bias, report
        return [reports[position] for position in range(len(fits))]

    def _weight(self, logits: Tensor, labels: Tensor) -> float:
        """Return the weight of the penalty: its own, and what held-out rows ask for."""
        if self.variant == "paper":
            return self.weight_decay
        folds = [
            ((logits[~held], labels[~held]), (logits[held], labels[held]))
            for held in validation_folds(len(labels), labels.device)
        ]

        def held_out(calibrator: Calibrator) -> float:
            return sum(
                float(F.nll_loss(calibrator.fit(*known)(rows), targets, reduction="sum"))
                for known, (rows, targets) in folds
            )

        def score(pull: float) -> float:
            return held_out(VectorScaling(weight_decay=self.weight_decay + pull, variant="paper"))

        return self.weight_decay + choose_pull(score, held_out(TemperatureScaling()))

    def _stay(self, start: Tensor, logits: Tensor, labels: Tensor) -> FitReport:
        self.slope, self.bias = start.clone(), torch.zeros_like(start)
        loss, _, _ = mean_loss([self.slope, self.bias], logits, labels)
        return FitReport(True, 0, loss, EQUAL_NOTE)

    def _fit_from(self, start: Tensor, weight: float, logits: Tensor, labels: Tensor) -> FitReport:
        if math.isinf(weight):
            return self._stay(start, logits, labels)

        def evaluate(parameters: Sequence[Tensor]) -> tuple[float, Sequence[Tensor]]:
            loss, in_slope, in_bias = mean_loss(parameters, logits, labels)
            away, bias = parameters[0] - start, parameters[1]
            penalty = 0.5 * weight * (away.square().sum() + bias.square().sum())
            slopes = in_slope + weight * away, in_bias + weight * bias
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
