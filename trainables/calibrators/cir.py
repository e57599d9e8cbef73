import numpy as np
import scipy
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._binary import Curve
from trainables.calibrators.isotonic import IsotonicCalibration


@CALIBRATORS.register("cir")
class CentredIsotonicCalibration(IsotonicCalibration):
    """``isotonic``, with each flat stretch replaced by a point at its centre.

    Oron and Flournoy, Centered isotonic regression, Statistics in Biopharmaceutical Research 2017.
    The point is at the mean score of the stretch's rows; the curve is linear between points and
    constant outside. So scores are tied only beyond the first and the last point. Otherwise this
    calibrator is like ``isotonic``.
    """

    def _curve(self, scores: Tensor, hits: Tensor) -> Curve:
        values, right = scores.double().cpu().numpy(), hits.double().cpu().numpy()
        # Hits come first among equal scores, so that these always share a stretch.
        order = np.lexsort((-right, values))
        found = scipy.optimize.isotonic_regression(right[order])
        starts = found.blocks[:-1]
        centres = np.add.reduceat(values[order], starts) / found.weights
        return centres.tolist(), found.x[starts].tolist()
