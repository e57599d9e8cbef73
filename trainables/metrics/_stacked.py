"""The metrics of many predictions on the same rows at once."""

import torch
from torch import Tensor

from trainables.metrics._binning import Binned, mass_edges, width_edges
from trainables.metrics._metrics import REPORTED
from trainables.metrics._scores import BLOCK_ELEMENTS

BINS = 15


def calibration_reports(logits: Tensor, labels: Tensor) -> list[dict[str, float]]:
    """Return what ``calibration_report`` returns for each of M networks, computed together.

    Not for a single one, nor for logits that are not known to be finite: nothing is checked.

    Args:
        logits: (M, N, K), finite, floating.
        labels: (N,), integers in [0, K).

    Raises:
        ValueError: If the shapes do not fit.
    """
    if logits.ndim != 3 or labels.shape != logits.shape[1:2]:
        raise ValueError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} are not (M, N, K), (N,)"
        )
    step = max(1, BLOCK_ELEMENTS // logits[0].numel())
    values = torch.cat([_figures(part, labels) for part in logits.split(step)])
    return [dict(zip(REPORTED, row, strict=True)) for row in values.tolist()]


def _figures(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the metrics in the order of ``REPORTED``, (M, 8), float64."""
    scores = logits.double()
    largest, predicted = scores.max(dim=2)
    true = scores.gather(2, labels.expand(len(scores), -1)[:, :, None]).squeeze(2)
    shifted = scores.sub(largest[:, :, None]).exp_()
    scale = shifted.sum(dim=2)
    correct = (predicted == labels).double()
    ece, aece, mce = _top_label(scale.reciprocal(), correct)
    brier, cwece, cwaece = _over_classes(shifted.div_(scale[:, :, None]), labels)
    nll = (scale.log() + (largest - true)).mean(dim=1)
    return torch.stack([correct.mean(dim=1), nll, brier, ece, aece, cwece, cwaece, mce], dim=1)


def _top_label(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    width = Binned(confidence, correct, width_edges(BINS, torch.float64, confidence.device))
    mass = Binned(confidence, correct, mass_edges(confidence, BINS))
    return width.error(), mass.error(), width.largest_gap()


def _over_classes(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    members, rows, classes = probs.shape
    columns = probs.transpose(1, 2).contiguous().view(members * classes, rows)
    hits = (labels == torch.arange(classes, device=labels.device)[:, None]).double()
    hits = hits.repeat(members, 1)
    edges = width_edges(BINS, torch.float64, probs.device)
    brier = (columns - hits).square().view(members, -1).sum(dim=1) / rows
    width = Binned(columns, hits, edges).error().view(members, classes).mean(dim=1)
    mass = Binned(columns, hits, mass_edges(columns, BINS)).error().view(members, classes)
    return brier, width, mass.mean(dim=1)
