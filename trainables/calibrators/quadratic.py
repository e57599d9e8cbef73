from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._logistic import LogisticCalibrator


@CALIBRATORS.register("quadratic")
class QuadraticScaling(LogisticCalibrator):
    """``sigmoid(w l + v l^2 + b)`` of the log odds l of a class, each class against the rest.

    Berta et al., arXiv 2511.03685, who propose it for two classes. The curve may not be monotone:
    if v is far from 0, the order of scores is reversed at one end. Accuracy may change. See
    ``LogisticCalibrator`` for the targets and ``MixedCalibrator`` for ``variant``.
    """

    identity = (1.0, 0.0, 0.0)

    @staticmethod
    def _features(log_p: Tensor, log_rest: Tensor) -> list[Tensor]:
        odds = log_p - log_rest
        return [odds, odds.square()]
