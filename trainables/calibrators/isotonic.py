import itertools
from collections.abc import Sequence

import numpy as np
import scipy
import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._binary import Curve, CurveCalibrator
from trainables.common.fields import fitted


@CALIBRATORS.register("isotonic")
class IsotonicCalibration(CurveCalibrator):
    """A non-decreasing curve per class (Zadrozny and Elkan, KDD 2002), by SciPy.

    Between the fitted points the curve is linear, outside it is constant. Accuracy may change, and
    classes may tie. Do not use the ``paper`` variant with few rows per class, or if the
    log-likelihood matters, because curves reach 0 and 1. The curve of a class without fitting rows
    is 0. See ``MixedCalibrator`` for ``variant``.
    """

    points: Tensor = fitted()
    values: Tensor = fitted()
    offsets: Tensor = fitted()

    def _curve(self, scores: Tensor, hits: Tensor) -> Curve:
        points, values = isotonic_curve(scores.cpu().numpy(), hits.cpu().numpy())
        return points.tolist(), values.tolist()

    def _keep(self, curves: Sequence[Curve]) -> None:
        self.points, self.values = (
            torch.tensor(list(itertools.chain(*column)), dtype=torch.float64)
            for column in zip(*curves, strict=True)
        )
        self.offsets = torch.tensor([0, *(len(points) for points, _ in curves)]).cumsum(0)

    def _map(self, probabilities: Tensor) -> Tensor:
        scores = probabilities.cpu().numpy()
        ends = self.offsets.tolist()
        points, values = self.points.numpy(), self.values.numpy()
        mapped = np.empty_like(scores)
        for k, (start, stop) in enumerate(itertools.pairwise(ends)):
            mapped[:, k] = np.interp(scores[:, k], points[start:stop], values[start:stop])
        return torch.from_numpy(mapped).to(probabilities.device)

    def _summary(self) -> dict[str, float]:
        """Return the mean number of points per curve."""
        return {"points_per_class": len(self.points) / self.num_classes}


def isotonic_curve(scores: np.ndarray, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points and values of the least-squares non-decreasing curve, float64."""
    # Hits come first among equal scores, so that these always share a block.
    order = np.lexsort((~hits, scores))
    fitted = scipy.optimize.isotonic_regression(hits[order].astype(np.float64))
    ends = np.union1d(fitted.blocks[:-1], fitted.blocks[1:] - 1)
    return scores[order][ends].astype(np.float64), fitted.x[ends]
