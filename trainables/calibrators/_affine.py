"""The family that maps logits, or log-probabilities, by a matrix and a bias."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import Calibrator, FitReport
from trainables.calibrators._checks import check_range
from trainables.calibrators._groups import fit_group_temperatures
from trainables.calibrators._minimize import minimize_objective
from trainables.calibrators.objectives import build_objective

SINGLE_PRECISION_CLASSES = 200
TOLERANCE = 1e-6


class AffineCalibrator(Calibrator):
    """``softmax(W f(z) + b)``, with W full, fitted by maximum likelihood with ODIR.

    The penalty is ``weight_offdiag`` times the sum of the squared off-diagonal entries of W plus
    ``weight_bias`` times that of the biases, added to the mean negative log-likelihood (ODIR: Kull
    et al., NeurIPS 2019, who divide by K(K - 1) and by K; without, one value suits every K). The
    problem is convex; the fit starts at the best temperature.

    Args:
        weight_offdiag: Off-diagonal penalty, >= 0.
        weight_bias: Bias penalty, >= 0.

    Raises:
        ValueError: If a weight is negative.
    """

    state_names = ("matrix", "bias")
    matrix: Tensor
    bias: Tensor

    def __init__(self, *, weight_offdiag: float, weight_bias: float) -> None:
        self.weight_offdiag = check_range(
            "weight_offdiag", weight_offdiag, 0.0, float("inf"), right_open=True
        )
        self.weight_bias = check_range(
            "weight_bias", weight_bias, 0.0, float("inf"), right_open=True
        )

    @staticmethod
    def _features(logits: Tensor) -> Tensor:
        """Return what the matrix acts on, (N, K)."""
        return logits

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        classes = logits.shape[1]
        objective = build_objective("ce")
        common, _ = fit_group_temperatures(logits, labels, torch.zeros_like(labels), 1, objective)
        identity = torch.eye(classes, dtype=torch.float64, device=logits.device)
        start = [identity / common, torch.zeros_like(identity[0])]

        def penalty(parameters: Sequence[Tensor]) -> Tensor:
            matrix, bias = parameters
            outside = matrix.square().sum() - matrix.diagonal().square().sum()
            return self.weight_offdiag * outside + self.weight_bias * bias.square().sum()

        found, report = minimize_objective(
            self._map, start, logits, labels, objective, penalty=penalty, tolerance=TOLERANCE
        )
        self.matrix, self.bias = found
        return report

    def _map(self, parameters: Sequence[Tensor], logits: Tensor) -> Tensor:
        """Multiply in float32 where K is large: the matrix product is all of the time there."""
        matrix, bias = parameters
        features = self._features(logits)
        if logits.shape[1] > SINGLE_PRECISION_CLASSES:
            mapped = F.linear(features.float(), matrix.float(), bias.float()).double()
        else:
            mapped = F.linear(features, matrix, bias)
        return F.log_softmax(mapped, dim=1)

    def _transform(self, logits: Tensor) -> Tensor:
        parameters = self.matrix.to(logits.device), self.bias.to(logits.device)
        return self._map(parameters, logits)

    def summary(self) -> dict[str, float]:
        """Return mean diagonal, root mean square off the diagonal, and largest absolute bias."""
        self.require_fitted()
        diagonal = self.matrix.diagonal()
        outside = self.matrix - torch.diag(diagonal)
        pairs = self.num_classes * (self.num_classes - 1)
        return {
            "diagonal_mean": float(diagonal.mean()),
            "offdiagonal_rms": float((outside.square().sum() / pairs).sqrt()),
            "bias_max": float(self.bias.abs().max()),
        }
