import math

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, FitReport, by_block, first_argmax
from trainables.calibrators._mixing import MixedCalibrator
from trainables.common.fields import count, fitted
from trainables.common.logit_rows import find_masked

LOWEST, HIGHEST = 1e-6, 1 - 1e-6
GRID = 2001
TINY = 1e-300


@CALIBRATORS.register("spline")
class SplineCalibration(MixedCalibrator):
    """Takes the accuracy at each confidence from a spline of the cumulative accuracy.

    Gupta et al., Calibration of neural networks using splines, ICLR 2021. Rows are ordered by
    confidence. At each row's rank, the share of all rows that are right and not more confident is
    computed, and a natural cubic spline is fitted to these shares by least squares. The spline's
    slope at a row's rank is the calibrated confidence, at least 1 / K. (The released code fits the
    difference of cumulative accuracy and confidence and adds the confidence afterwards.) The other
    classes share the rest in their old proportions. If one of them would exceed the predicted
    class, they are evened out just enough to keep accuracy. Only the top label is calibrated: do
    not use it if the other probabilities matter. If there are more knots than ranks (rows + 1), the
    least-squares solution with the smallest norm is used. See ``MixedCalibrator`` for ``variant``.

    Args:
        knots: Number of knots of the spline, evenly spaced in rank, at least 3.
    """

    preserves_accuracy = True
    transfers = True
    knots: int = count(default=6, low=3)
    confidences: Tensor = fitted()
    calibrated: Tensor = fitted()

    def _fit_alone(self, logits: Tensor, labels: Tensor) -> FitReport:
        top = by_block(logits, lambda rows: rows.double().softmax(1).amax(1))
        scores, right = top.cpu().numpy(), (first_argmax(logits) == labels).cpu().numpy()
        order = np.argsort(scores, kind="stable")
        scores, right = scores[order], right[order]
        basis = scipy.interpolate.CubicSpline(
            np.linspace(0, 1, self.knots), np.eye(self.knots), bc_type="natural"
        )
        ranks = np.arange(len(scores) + 1) / len(scores)
        cumulated = np.concatenate([[0.0], np.cumsum(right)]) / len(scores)
        weights, *_ = np.linalg.lstsq(basis(ranks), cumulated, rcond=None)
        at = np.linspace(0, 1, min(GRID, len(scores)))
        slope = (basis.derivative()(at) @ weights).clip(LOWEST, HIGHEST)
        place = np.quantile(scores, at)
        self.confidences, first = map(torch.from_numpy, np.unique(place, return_index=True))
        self.calibrated = torch.from_numpy(slope)[first]
        return FitReport(True, 1, float(np.abs(basis(ranks) @ weights - cumulated).max()))

    def _transform_alone(self, logits: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=1)
        winner = first_argmax(logits).unsqueeze(1)
        top = log_probs.gather(1, winner)
        wanted = np.interp(
            top.exp().cpu().numpy(), self.confidences.numpy(), self.calibrated.numpy()
        )
        masked = find_masked(logits)
        allowed = torch.full_like(top, logits.shape[1])
        if masked is not None:
            allowed = (~masked).sum(1, keepdim=True).double()
        confidence = torch.from_numpy(wanted).to(logits.device).maximum(1 / allowed)
        rest = log_probs.scatter(1, winner, -math.inf)
        shares = F.softmax(rest, dim=1)
        even = 1 / (allowed - 1).clamp(min=1)
        largest = shares.amax(1, keepdim=True)
        excess = largest - confidence / (1 - confidence)
        mixed = (excess / (largest - even).clamp(min=TINY)).clamp(0, 1)
        others = (1 - confidence) * ((1 - mixed) * shares + mixed * even)
        return others.scatter(1, winner, confidence).clamp(min=TINY).log()

    def _summary(self) -> dict[str, float]:
        """Return the calibrated values of the least and the most confident fitting row."""
        return {"lowest": float(self.calibrated[0]), "highest": float(self.calibrated[-1])}
