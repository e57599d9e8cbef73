from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS
from trainables.calibrators._binary import Curve, CurveCalibrator
from trainables.common.fields import count, fitted


@CALIBRATORS.register("histogram-binning")
class HistogramBinning(CurveCalibrator):
    """Replaces each probability by the share of rows in its bin whose label is the class.

    Zadrozny and Elkan, ICML 2001; for several classes as in Guo et al., ICML 2017. Bins have equal
    width and are open on the left; a bin without rows maps to its middle. Accuracy may change, and
    classes may tie. Do not use it if ranks or the log-likelihood matter, nor with few rows per
    class. See ``MixedCalibrator`` for ``variant``.

    Args:
        bins: Number of bins per class, at least 1.
    """

    bins: int = count(default=15)
    shares: Tensor = fitted()

    def _curve(self, scores: Tensor, hits: Tensor) -> Curve:
        index = self._bin(scores)
        counts, right = (
            torch.bincount(chosen, minlength=self.bins).double() for chosen in (index, index[hits])
        )
        middles = (torch.arange(self.bins, device=scores.device).double() + 0.5) / self.bins
        return (torch.where(counts > 0, right / counts.clamp(min=1), middles).tolist(),)

    def _keep(self, curves: Sequence[Curve]) -> None:
        self.shares = torch.tensor([shares for (shares,) in curves], dtype=torch.float64)

    def _bin(self, probabilities: Tensor) -> Tensor:
        return (probabilities * self.bins).ceil().long().clamp(1, self.bins) - 1

    def _map(self, probabilities: Tensor) -> Tensor:
        shares = self.shares.to(probabilities.device)
        return shares.gather(1, self._bin(probabilities).T).T

    def _summary(self) -> dict[str, float]:
        return {"share_min": float(self.shares.min()), "share_max": float(self.shares.max())}
