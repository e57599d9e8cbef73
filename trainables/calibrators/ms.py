"""Matrix scaling."""

from trainables.calibrators._affine import AffineCalibrator
from trainables.calibrators._registry import CALIBRATORS


@CALIBRATORS.register("ms")
class MatrixScaling(AffineCalibrator):
    """``softmax(W z + b)`` on the logits (Guo et al., ICML 2017), with ODIR (MS-ODIR).

    It changes accuracy. Without penalty, K^2 + K parameters overfit as soon as K is more than a
    few; with both weights 0 it is Guo et al.'s. Do not use it where K is in the hundreds: time and
    rows needed grow with K^2. Rows are read as they are, so logits shifted by a constant a row give
    another fit; use ``dirichlet`` for logits known up to a constant only.

    Args:
        weight_offdiag: Off-diagonal penalty lambda on the sum of squares, >= 0.
        weight_bias: Bias penalty mu on the sum of squares, >= 0.
        variant: ``shrunk`` also pulls the map towards the best temperature, as strongly as held-out
            fitting rows ask for; ``paper`` does not, and with ten rows a class it is far worse than
            no calibration. The default is the one that never is.

    Raises:
        ValueError: If a weight is negative, or there is no such variant.
    """

    name = "ms"
