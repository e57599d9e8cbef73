from torch import Tensor

from trainables.calibrators.objectives._base import OBJECTIVES, Objective, RowTerms
from trainables.common.fields import flag, number


@OBJECTIVES.register("fl")
class Focal(Objective):
    """Focal loss, ``-(1 - p_y)^gamma log p_y``, averaged over the rows.

    It rewards under-confidence, so calibration is usually worse than with ``ce``; the class-wise
    scaling paper compares with it (sec. 5.3, Table 1).

    Args:
        gamma: Focusing exponent, >= 0; 0 is ``ce``.
        detach: Whether the weight is a constant for the gradient, as in the class-wise scaling
            code, so that the weighted likelihood gradient vanishes at the end of the fit. By
            default, the fit ends at the minimum of the paper's loss.
    """

    scheduled = True

    gamma: float = number(default=3.0, low=0.0)
    detach: bool = flag(default=False)

    def per_row(self, terms: RowTerms) -> Tensor:
        log_p = terms.log_p.detach() if self.detach else terms.log_p
        return -((-log_p.expm1()).clamp(min=1e-300) ** self.gamma) * terms.log_p
