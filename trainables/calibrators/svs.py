import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._structured import StructuredCalibrator


@CALIBRATORS.register("svs")
class StructuredVectorScaling(StructuredCalibrator):
    """A temperature, then a slope and a bias per class that are pulled towards the identity.

    ``softmax((1 + d) * f + b)``. Accuracy may change. With few rows per class it is like
    temperature scaling, with many rows like vector scaling: prefer it to ``vs`` unless you repeat a
    published result. See ``StructuredCalibrator`` for the source, the penalty and the arguments.
    """

    def _penalty(self, logits: Tensor) -> Tensor:
        rows, classes = logits.shape
        weights = torch.tensor([[self.weight_diag], [self.weight_bias]], dtype=torch.float64)
        return weights.to(logits.device).expand(2, classes) * (classes / rows)

    def _summary(self) -> dict[str, float]:
        slope, bias = self.change
        return {
            "temperature": float(self.temperature),
            "slope_min": 1 + float(slope.min()),
            "slope_max": 1 + float(slope.max()),
            "bias_max": float(bias.abs().max()),
        }
