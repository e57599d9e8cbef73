import numpy as np
import scipy
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._binary import Curve
from trainables.calibrators.isotonic import IsotonicCalibration


@CALIBRATORS.register("cir")
class CentredIsotonicCalibration(IsotonicCalibration):
    """``isotonic``, with each flat stretch drawn together to a point in its centre.

    Oron and Flournoy, Centered isotonic regression, Statistics in Biopharmaceutical Research 2017.
    The point lies at the mean score of the rows of the stretch; between points the curve is linear,
    outside it is constant. So scores are no longer tied, but those at either end. For the rest, and
    the argument, see ``isotonic``.
    """

    def _curve(self, scores: Tensor, hits: Tensor) -> Curve:
        values, right = scores.double().cpu().numpy(), hits.double().cpu().numpy()
        # Of equal scores the hits come first, so that they always share a stretch.
        order = np.lexsort((-right, values))
        found = scipy.optimize.isotonic_regression(right[order])
        starts = found.blocks[:-1]
        centres = np.add.reduceat(values[order], starts) / found.weights
        return centres.tolist(), found.x[starts].tolist()
