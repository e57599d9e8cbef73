from trainables.calibrators._affine import AffineCalibrator
from trainables.calibrators._base import CALIBRATORS


@CALIBRATORS.register("ms")
class MatrixScaling(AffineCalibrator):
    """``softmax(W z + b)`` on the logits (Guo et al., ICML 2017), with ODIR (MS-ODIR).

    Accuracy may change. Without penalty (with both weights 0 it is Guo et al.'s method), its K^2 +
    K parameters overfit for more than a few classes. Do not use it for hundreds of classes: the
    time and rows that it needs grow with K^2. Adding a constant to each row's logits changes the
    fit; use ``dirichlet`` if logits are only known up to a constant. See ``AffineCalibrator`` for
    the arguments.
    """
