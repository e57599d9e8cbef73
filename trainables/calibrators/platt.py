from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._logistic import LogisticCalibrator


@CALIBRATORS.register("platt")
class PlattScaling(LogisticCalibrator):
    """``sigmoid(w l + b)`` of the log odds l of a class (Platt 1999), each class against the rest.

    Accuracy may change. With two classes it is a slope and a bias; with more, ``svs`` fits such
    curves together and is the better choice. See ``LogisticCalibrator`` for the targets and
    ``MixedCalibrator`` for ``variant``.
    """

    identity = (1.0, 0.0)

    @staticmethod
    def _features(log_p: Tensor, log_rest: Tensor) -> list[Tensor]:
        return [log_p - log_rest]
