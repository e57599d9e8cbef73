"""Histogram binning of each class against the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.calibrators._binary import OneVersusRestCalibrator
from trainables.calibrators._checks import check_count
from trainables.calibrators._registry import CALIBRATORS


@CALIBRATORS.register("histogram-binning")
class HistogramBinning(OneVersusRestCalibrator):
    """Replaces each probability by the class's share of labels in its bin.

    Zadrozny and Elkan, ICML 2001; for several classes as in Guo et al., ICML 2017. Bins have equal
    width, open on the left; a bin without rows maps to its middle. It changes accuracy and ties
    classes. Do not use it where ranks or the log-likelihood matter, nor with few rows a class.

    Args:
        bins: Bins a class, at least 1.

    Raises:
        ValueError: If ``bins`` is out of its range.
    """

    name = "histogram-binning"
    state_names = ("shares",)
    shares: Tensor

    def __init__(self, *, bins: int = 15) -> None:
        self.bins = check_count("bins", bins, 1)

    def _fit_classes(self, probabilities: Tensor, labels: Tensor) -> None:
        classes = probabilities.shape[1]
        cells = torch.zeros(classes * self.bins, dtype=torch.float64, device=labels.device)
        counts, hits = cells.clone(), cells.clone()
        for k in range(classes):
            index = self._bin(probabilities[:, k]) + k * self.bins
            counts += torch.bincount(index, minlength=len(cells))
            hits += torch.bincount(index[labels == k], minlength=len(cells))
        middles = (torch.arange(self.bins, device=labels.device) + 0.5) / self.bins
        empty = middles.double().repeat(classes)
        self.shares = torch.where(counts > 0, hits / counts.clamp(min=1), empty)
        self.shares = self.shares.reshape(classes, self.bins)

    def _bin(self, probabilities: Tensor) -> Tensor:
        return (probabilities * self.bins).ceil().long().clamp(1, self.bins) - 1

    def _map(self, probabilities: Tensor) -> Tensor:
        shares = self.shares.to(probabilities.device)
        return shares.gather(1, self._bin(probabilities).T).T

    def summary(self) -> dict[str, float]:
        """Return the smallest and largest share of any bin."""
        self.require_fitted()
        return {"share_min": float(self.shares.min()), "share_max": float(self.shares.max())}
