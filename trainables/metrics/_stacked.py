"""The metrics of many predictions on the same rows at once."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.metrics._binning import (
    bin_index,
    bin_sums,
    binned_error,
    mass_edges,
    width_edges,
)
from trainables.metrics._report import METRICS
from trainables.metrics._scores import BLOCK_ELEMENTS, check_bins

__all__ = ["calibration_reports"]


def calibration_reports(logits: Tensor, labels: Tensor, bins: int = 15) -> list[dict[str, float]]:
    """Return what ``calibration_report`` returns for each of M networks, computed together.

    Not for a single one, nor for logits that are not known to be finite: nothing is checked.

    Args:
        logits: (M, N, K), finite, floating.
        labels: (N,), integers in [0, K).
        bins: Number of bins of every binned metric, at least 1.

    Raises:
        ValueError: If ``bins`` is no positive integer or the shapes do not fit.
    """
    check_bins(bins)
    if logits.ndim != 3 or labels.shape != logits.shape[1:2]:
        raise ValueError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} are not (M, N, K), (N,)"
        )
    step = max(1, BLOCK_ELEMENTS // logits[0].numel())
    values = torch.cat([_figures(part, labels, bins) for part in logits.split(step)])
    return [dict(zip(METRICS, row, strict=True)) for row in values.tolist()]


def _figures(logits: Tensor, labels: Tensor, bins: int) -> Tensor:
    """Return the metrics in the order of ``METRICS``, (M, 8), float64."""
    scores = logits.double()
    largest, predicted = scores.max(dim=2)
    true = scores.gather(2, labels.expand(len(scores), -1)[:, :, None]).squeeze(2)
    shifted = scores.sub(largest[:, :, None]).exp_()
    scale = shifted.sum(dim=2)
    correct = (predicted == labels).double()
    ece, aece, mce = _top_label(scale.reciprocal(), correct, bins)
    brier, cwece, cwaece = _over_classes(shifted.div_(scale[:, :, None]), labels, bins)
    nll = (scale.log() + (largest - true)).mean(dim=1)
    return torch.stack([correct.mean(dim=1), nll, brier, ece, aece, cwece, cwaece, mce], dim=1)


def _top_label(confidence: Tensor, correct: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    index = bin_index(confidence, width_edges(bins, torch.float64, confidence.device))
    gaps = bin_sums(index, confidence - correct, bins).abs()
    counts = bin_sums(index, torch.ones_like(confidence), bins)
    aece = binned_error(confidence, correct, mass_edges(confidence, bins))
    mce = (gaps / counts.clamp(min=1)).amax(dim=1)
    return gaps.sum(dim=1) / confidence.shape[1], aece, mce


def _over_classes(probs: Tensor, labels: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    members, rows, classes = probs.shape
    columns = probs.transpose(1, 2).contiguous().view(members * classes, rows)
    hits = (labels == torch.arange(classes, device=labels.device)[:, None]).double()
    hits = hits.repeat(members, 1)
    edges = width_edges(bins, torch.float64, probs.device)
    brier = (columns - hits).square().view(members, -1).sum(dim=1) / rows
    width = binned_error(columns, hits, edges).view(members, classes).mean(dim=1)
    mass = binned_error(columns, hits, mass_edges(columns, bins)).view(members, classes)
    return brier, width, mass.mean(dim=1)
