"""The family that maps logits, or log-probabilities, by a matrix and a bias."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._affine_fit import AffineFit, product_precision
from trainables.calibrators._base import Calibrator, Fit, FitReport, by_chunk
from trainables.calibrators._checks import check_range
from trainables.calibrators._together import RowSets
from trainables.calibrators.objectives import build_objective


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
    def _offsets(logits: Tensor) -> Tensor:
        """Return what is subtracted from each row before the matrix acts on it, (N,)."""
        return torch.zeros_like(logits[:, 0])

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        return self._fit_many([Fit(self, 0)], RowSets(logits, labels))[0]

    @classmethod
    def _fit_many(cls, fits: Sequence[Fit[AffineCalibrator]], table: RowSets) -> list[FitReport]:
        found = table.temperatures(fits, [build_objective("ce")] * len(fits))
        return [
            fit.calibrator._fit_from(common, *table.of(fit.rows))
            for fit, (common, _) in zip(fits, found, strict=True)
        ]

    def _fit_from(self, common: Tensor, logits: Tensor, labels: Tensor) -> FitReport:
        offsets = by_chunk(logits, lambda rows: self._offsets(rows.double()))
        problem = AffineFit(logits, offsets, labels, (self.weight_offdiag, self.weight_bias))
        self.matrix, self.bias, report = problem.minimize(common)
        return report

    def _transform(self, logits: Tensor) -> Tensor:
        """Multiply in the precision of the fit."""
        features = logits - self._offsets(logits).unsqueeze(1)
        dtype = product_precision(logits.shape[1])
        matrix, bias = (t.to(logits.device, dtype) for t in (self.matrix, self.bias))
        return F.log_softmax(F.linear(features.to(dtype), matrix, bias).double(), dim=1)

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
