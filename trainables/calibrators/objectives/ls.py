from torch import Tensor

from trainables.calibrators.objectives._base import OBJECTIVES, Objective, RowTerms
from trainables.common.fields import number


@OBJECTIVES.register("ls")
class LabelSmoothing(Objective):
    """Cross-entropy with labels smoothed over all K classes, including the true one.

    Masked classes are ignored: the mass is spread over the others.

    It rewards less confidence than the labels justify, so calibration is usually worse than with
    ``ce``; the class-wise scaling paper compares with it (sec. 5.3, Table 1).

    Args:
        smoothing: Mass spread evenly over all classes, in [0, 1).
    """

    needs_mean = True
    scheduled = True

    smoothing: float = number(default=0.05, low=0.0, high=1.0, open_high=True)

    def per_row(self, terms: RowTerms) -> Tensor:
        """Return the cross-entropy between the smoothed label and the calibrated row."""
        return -(1 - self.smoothing) * terms.log_p - self.smoothing * terms.mean_log_p
