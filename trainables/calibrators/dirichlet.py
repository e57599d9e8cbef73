from torch import Tensor

from trainables.calibrators._affine import AffineCalibrator
from trainables.calibrators._base import CALIBRATORS


@CALIBRATORS.register("dirichlet")
class DirichletCalibration(AffineCalibrator):
    """``softmax(W log softmax(z) + b)`` with off-diagonal and intercept regularisation.

    Kull et al., Beyond temperature scaling, NeurIPS 2019, with their penalty (ODIR). Accuracy may
    change. Do not use it without its penalty for more than a few classes, nor for hundreds of
    classes: the time and rows that it needs grow with K^2. See ``AffineCalibrator`` for the
    arguments.
    """

    @staticmethod
    def _offsets(logits: Tensor) -> Tensor:
        return logits.logsumexp(1)
