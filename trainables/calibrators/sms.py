import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS, matrix_summary
from trainables.calibrators._structured import StructuredCalibrator
from trainables.common.fields import number


@CALIBRATORS.register("sms")
class StructuredMatrixScaling(StructuredCalibrator):
    """A temperature, then a matrix and biases that are pulled towards the identity.

    ``softmax((I + D) f + b)``. Accuracy may change. The penalty off the diagonal grows with K^2, so
    that with many classes it is nearly ``svs``, which is faster. See ``StructuredCalibrator`` for
    the source, the penalty and the other arguments.

    Args:
        weight_offdiag: Weight of the squared off-diagonal entries, >= 0.
    """

    weight_offdiag: float = number(default=1.0, low=0.0)

    def _penalty(self, logits: Tensor) -> Tensor:
        rows, classes = logits.shape
        outside = self.weight_offdiag * classes * (classes - 1) / rows
        shape = classes, classes + 1
        weights = torch.full(shape, outside, dtype=torch.float64, device=logits.device)
        weights.diagonal().fill_(self.weight_diag * classes / rows)
        weights[:, -1] = self.weight_bias * classes / rows
        return weights

    def _summary(self) -> dict[str, float]:
        found = matrix_summary(self.change[:, :-1], self.change[:, -1])
        found["diagonal_mean"] += 1
        return {"temperature": float(self.temperature), **found}
