from trainables.calibrators._affine import AffineCalibrator
from trainables.calibrators._base import CALIBRATORS


@CALIBRATORS.register("ms")
class MatrixScaling(AffineCalibrator):
    """``softmax(W z + b)`` on the logits (Guo et al., ICML 2017), with ODIR (MS-ODIR).

    It changes accuracy. Without penalty, K^2 + K parameters overfit as soon as K is more than a
    few; with both weights 0 it is Guo et al.'s. Do not use it where K is in the hundreds: time and
    rows needed grow with K^2. Rows are read as they are, so logits shifted by a constant a row give
    another fit; use ``dirichlet`` for logits known up to a constant only. See
    ``AffineCalibrator`` for the arguments.
    """
