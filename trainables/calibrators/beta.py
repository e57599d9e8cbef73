from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._logistic import LogisticCalibrator, logistic_fits


@CALIBRATORS.register("beta")
class BetaCalibration(LogisticCalibrator):
    """``sigmoid(a log p - b log(1 - p) + c)`` with a and b >= 0, each class against the rest.

    Kull et al., Beta calibration, AISTATS 2017. As in their code, a negative coefficient (of two,
    the more negative one) is set to 0 and the others are fitted again; if one is then still
    negative, both are 0. So curves never fall. Accuracy may change. See ``LogisticCalibrator`` for
    the targets and ``MixedCalibrator`` for ``variant``.
    """

    identity = (1.0, 1.0, 0.0)

    @staticmethod
    def _features(log_p: Tensor, log_rest: Tensor) -> list[Tensor]:
        return [log_p, -log_rest]

    def _coefficients(self, features: Tensor, targets: Tensor) -> Tensor:
        found = super()._coefficients(features, targets)
        falls, steepest = found[:, :2].amin(1) < 0, found[:, :2].argmin(1)
        for feature, kept in ((0, [1, 2]), (1, [0, 2])):
            rows = falls & (steepest == feature)
            found[rows] = self._fits_of(features[rows], targets[rows], kept)
        rows = found[:, :2].amin(1) < 0
        found[rows] = self._fits_of(features[rows], targets[rows], [2])
        return found

    def _fits_of(self, features: Tensor, targets: Tensor, kept: list[int]) -> Tensor:
        """Fit the ``kept`` features; return all coefficients, 0 for the others."""
        found, start = features.new_zeros(features.shape[:2]), [self.identity[at] for at in kept]
        found[:, kept] = logistic_fits(features[:, kept], targets, start)
        return found
