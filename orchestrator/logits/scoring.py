"""ECE, accuracy and NLL, computed piece by piece."""

from collections.abc import Iterable

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from trainables.metrics import reliability_curve

VALUES_AT_ONCE = 1 << 19


def score(log_probs: Tensor, labels: Tensor, bins: int) -> tuple[float, float, float]:
    """Return ECE, accuracy and NLL of logits or log-probabilities (N, K)."""
    classes = log_probs.shape[1]
    parts = zip(pieces(log_probs, classes), pieces(labels, classes), strict=True)
    return score_pieces(parts, bins)


def score_pieces(parts: Iterable[tuple[Tensor, Tensor]], bins: int) -> tuple[float, float, float]:
    """Return ECE, accuracy and NLL of log-probabilities and labels that come in pieces."""
    count, right, confident = np.zeros((3, bins))
    loss = 0.0
    for log_probs, labels in parts:
        curve = reliability_curve(logits=log_probs, labels=labels, bins=bins)
        count += curve.count
        right += np.nan_to_num(curve.accuracy) * curve.count
        confident += np.nan_to_num(curve.confidence) * curve.count
        loss += float(F.cross_entropy(log_probs.double(), labels, reduction="sum"))
    rows = count.sum()
    ece = np.abs(right - confident).sum() / rows
    return float(ece), float(right.sum() / rows), loss / float(rows)


def pieces(rows: Tensor, classes: int) -> tuple[Tensor, ...]:
    """Split rows (N, ...) so that a float64 copy of each piece's logits (n, K) is small."""
    return rows.split(max(1, VALUES_AT_ONCE // classes))
