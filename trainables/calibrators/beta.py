import numpy as np
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._logistic import LogisticCalibrator, logistic_fit
from trainables.calibrators._mixing import MIXING_STATE


@CALIBRATORS.register("beta")
class BetaCalibration(LogisticCalibrator):
    """``sigmoid(a log p - b log(1 - p) + c)`` with a and b >= 0, each class against the rest.

    Kull et al., Beta calibration, AISTATS 2017. As in their code, a coefficient that would be
    negative is left out and the others are fitted again, so that curves never fall. It changes
    accuracy. See ``LogisticCalibrator`` for the targets and ``MixedCalibrator`` for the argument.
    """

    name = "beta"
    state_names = ("coefficients", *MIXING_STATE)

    @staticmethod
    def _features(log_p: Tensor, log_rest: Tensor) -> list[Tensor]:
        return [log_p, -log_rest]

    @staticmethod
    def _coefficients(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
        kept, found = [0, 1, 2], np.zeros(3)
        while True:
            values = logistic_fit(features[:, kept], targets)
            slopes = values[:-1]
            if not (slopes < 0).any():
                found[kept] = values
                return found
            del kept[int(slopes.argmin())]
