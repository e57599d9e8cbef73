"""Dirichlet calibration."""

from torch import Tensor

from trainables.calibrators._affine import AffineCalibrator
from trainables.calibrators._registry import CALIBRATORS


@CALIBRATORS.register("dirichlet")
class DirichletCalibration(AffineCalibrator):
    """``softmax(W log softmax(z) + b)`` with off-diagonal and intercept regularisation.

    Kull et al., Beyond temperature scaling, NeurIPS 2019, with their penalty (ODIR). It changes
    accuracy. Do not use it without its penalty where K is more than a few, nor where K is in the
    hundreds: time and rows needed grow with K^2.

    Args:
        weight_offdiag: Off-diagonal penalty lambda on the sum of squares, >= 0.
        weight_bias: Bias penalty mu on the sum of squares, >= 0.
        variant: ``shrunk`` also pulls the map towards the best temperature, as strongly as held-out
            fitting rows ask for; ``paper`` does not, and with ten rows a class it is far worse than
            no calibration. The default is the one that never is.

    Raises:
        ValueError: If a weight is negative, or there is no such variant.
    """

    name = "dirichlet"

    @staticmethod
    def _offsets(logits: Tensor) -> Tensor:
        return logits.logsumexp(1)
