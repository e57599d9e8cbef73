"""The numbers behind a reliability diagram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.metrics._binning import bin_index, bin_sums, mass_edges, width_edges
from trainables.metrics._scores import ArrayLike, Scores, check_bins

SCHEMES = ("width", "mass")


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """What each bin of the top-label confidence holds, from the lowest bin to the highest.

    Attributes:
        edges: Ends of the bins ``(a, b]``, (bins + 1,), in [0, 1].
        confidence: Mean confidence of each bin, (bins,); NaN where it is empty.
        accuracy: Share of right rows of each bin, (bins,); NaN where it is empty.
        count: Rows in each bin, (bins,), int64.
    """

    edges: NDArray[np.float64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    count: NDArray[np.int64]

    @property
    def error(self) -> float:
        """Mean gap between accuracy and confidence, weighted by rows: ECE (mass: AECE)."""
        return float(self._gaps() @ self.count / self.count.sum())

    @property
    def max_error(self) -> float:
        """Largest gap of a bin that is not empty: MCE."""
        return float(self._gaps().max())

    def _gaps(self) -> NDArray[np.float64]:
        return np.where(self.count > 0, np.abs(self.accuracy - self.confidence), 0.0)


def reliability_curve(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
    scheme: str = "width",
) -> ReliabilityCurve:
    """Return confidence, accuracy and count of each bin of the top-label confidence.

    Args:
        logits: See ``calibration_report``.
        probs: See ``calibration_report``.
        labels: See ``calibration_report``.
        bins: Number of bins, at least 1.
        scheme: ``width`` for the bins of ECE and MCE, ``mass`` for those of AECE.

    Raises:
        ValueError: See ``calibration_report``; or if ``scheme`` is neither.
    """
    check_bins(bins)
    if scheme not in SCHEMES:
        raise ValueError(f"scheme={scheme!r} is not one of {', '.join(SCHEMES)}")
    scores = Scores(logits, probs, labels)
    confidence = scores.confidence[None]
    if scheme == "mass":
        edges = mass_edges(confidence, bins)[0]
    else:
        edges = width_edges(bins, scores.edge_dtype, confidence.device)
    index = bin_index(confidence, edges)
    weights = (torch.ones_like(confidence), confidence, scores.correct[None])
    count, total, right = (bin_sums(index, weight, bins)[0].cpu().numpy() for weight in weights)
    filled = np.where(count > 0, count, np.nan)
    return ReliabilityCurve(
        edges.cpu().numpy(), total / filled, right / filled, count.astype(np.int64)
    )
