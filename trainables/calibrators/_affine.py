"""The family that maps logits, or log-probabilities, by a matrix and a bias."""

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._affine_fit import TOLERANCE, AffineFit, product_precision
from trainables.calibrators._base import Calibrator, FitReport, by_block, matrix_summary
from trainables.calibrators._shrinkage import VARIANTS, fit_shrunk
from trainables.calibrators._temperature import fit_temperature
from trainables.common.fields import choice, fitted, number
from trainables.common.logit_rows import find_masked, raise_masked


class AffineCalibrator(Calibrator):
    """``softmax(W f(z) + b)`` with a full matrix W, fitted by penalised maximum likelihood.

    f(z) are the logits minus an offset per row, see ``_offsets``. The penalty (ODIR, Kull et al.,
    NeurIPS 2019) is ``weight_offdiag`` times the sum of the squared off-diagonal entries of W plus
    ``weight_bias`` times the sum of the squared biases. It is added to the mean negative
    log-likelihood. Kull et al. divide the two sums by K(K - 1) and by K; without this division, one
    value suits every K. The problem is convex; the fit starts at the best temperature.

    Args:
        weight_offdiag: Off-diagonal penalty lambda, >= 0.
        weight_bias: Bias penalty mu, >= 0.
        variant: ``shrunk`` also pulls the map towards the best temperature, with the strength that
            is best on held-out fitting rows; if no matrix improves them, the map is temperature
            scaling. ``paper`` has only the two penalties; with ten rows per class it is far worse
            than no calibration.
    """

    weight_offdiag: float = number(default=0.01, low=0.0)
    weight_bias: float = number(default=0.01, low=0.0)
    variant: str = choice(default="shrunk", choices=VARIANTS)
    matrix: Tensor = fitted()
    bias: Tensor = fitted()

    @staticmethod
    def _offsets(logits: Tensor) -> Tensor:
        """Return the offset that is subtracted from the logits of each row, (N,)."""
        return torch.zeros_like(logits[:, 0])

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if self.variant == "paper":
            weights, report = self._problem(logits, labels).minimize()
        else:
            weights, report = fit_shrunk(self._problem, logits, labels, TOLERANCE)
        self.matrix, self.bias = weights[:, :-1].contiguous(), weights[:, -1].clone()
        return report

    def _problem(self, logits: Tensor, labels: Tensor) -> AffineFit:
        common, _ = fit_temperature(logits, labels)
        offsets = by_block(logits, lambda rows: self._offsets(rows.double()))
        weights = self.weight_offdiag, self.weight_bias
        return AffineFit(logits, offsets, labels, common, weights)

    def _transform(self, logits: Tensor) -> Tensor:
        """Return log-probabilities, float64; the matrix product has the precision of the fit."""
        features = raise_masked(logits, find_masked(logits)) - self._offsets(logits).unsqueeze(1)
        dtype = product_precision(logits.shape[1])
        matrix, bias = (t.to(logits.device, dtype) for t in (self.matrix, self.bias))
        return F.log_softmax(F.linear(features.to(dtype), matrix, bias).double(), dim=1)

    def _summary(self) -> dict[str, float]:
        return matrix_summary(self.matrix, self.bias)
