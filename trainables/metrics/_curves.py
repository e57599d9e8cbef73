"""The numbers behind reliability diagrams and risk-coverage curves."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainables.common.fields import check_choice, check_count
from trainables.common.later import torch
from trainables.common.logit_rows import BLOCK_VALUES
from trainables.metrics._scores import ArrayLike, Binned, Scores, mass_edges, width_edges


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Statistics of each bin of the top-label confidence, from the lowest bin to the highest.

    Attributes:
        edges: Ends of the bins ``(a, b]``, (bins + 1,), in [0, 1].
        confidence: Mean confidence of each bin, (bins,); NaN if it is empty.
        accuracy: Share of right rows of each bin, (bins,); NaN if it is empty.
        count: Rows in each bin, (bins,), int64.
    """

    edges: NDArray[np.float64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    count: NDArray[np.int64]

    @property
    def error(self) -> float:
        """Mean of |accuracy - confidence|, weighted by rows: ECE, with equal-mass bins AECE."""
        gaps = np.where(self.count > 0, np.abs(self.accuracy - self.confidence), 0.0)
        return float(gaps @ self.count / self.count.sum())


def reliability_curve(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    bins: int = 15,
    scheme: str = "width",
) -> ReliabilityCurve:
    """Return confidence, accuracy and count of each bin of the top-label confidence.

    The scheme is ``width`` for the bins of ECE and MCE, ``mass`` for those of AECE. For the other
    arguments and for errors see ``calibration_report``.
    """
    bins = check_count("bins", bins)
    check_choice("scheme", scheme, ("width", "mass"))
    scores = Scores(logits, probs, labels)
    confidence = scores.confidence[None]
    if scheme == "mass":
        edges = mass_edges(confidence, bins)[0]
    else:
        edges = width_edges(bins, scores.edge_dtype, confidence.device)
    binned = Binned(confidence, scores.correct[None], edges)
    sums = (binned.counts, binned.scores, binned.hits)
    count, total, right = (values[0].cpu().numpy() for values in sums)
    filled = np.where(count > 0, count, np.nan)
    return ReliabilityCurve(
        edges.cpu().numpy(), total / filled, right / filled, count.astype(np.int64)
    )


class PredictedRows(NamedTuple):
    """The top label of each row and its ECE bin; arrays are (N,), except ``sums``.

    Attributes:
        predicted: The first class with the largest score, int64.
        confidence: Its probability, float32.
        true: The probability of the label, float32.
        bins: The bin of the confidence, from 0, uint8.
        sums: Number of rows, sum of confidences and number of right rows of each bin, (3, bins),
            float64.
    """

    predicted: NDArray[np.int64]
    confidence: NDArray[np.float32]
    true: NDArray[np.float32]
    bins: NDArray[np.uint8]
    sums: NDArray[np.float64]


def predicted_rows(
    logits: NDArray[Any], labels: NDArray[np.integer], bins: int = 15
) -> PredictedRows:
    """Return the predictions of rows, computed without PyTorch.

    Bins are those of ECE, at most 256.

    Args:
        logits: (N, K), unnormalised or log-probabilities.
        labels: (N,), integers in [0, K).
        bins: Number of bins of equal width.

    Raises:
        ValueError: If logits or labels have a wrong shape or value.
    """
    classes = logits.shape[1]
    if labels.shape != logits.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"expected one whole number per row as labels, got {labels.dtype} {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"expected labels in [0, {classes}), got {labels.min()} to {labels.max()}")
    step = max(1, BLOCK_VALUES["cpu"] // classes)
    blocks = (slice(first, first + step) for first in range(0, len(labels), step))
    parts = [_predicted(logits[block], labels[block]) for block in blocks]
    predicted, confidence, true = map(np.concatenate, zip(*parts, strict=True))
    edges, index = np.arange(bins + 1) / bins, np.ceil(confidence * bins).astype(np.int64) - 1
    index += confidence > edges[index + 1]  # Corrects rounding; faster than a search.
    index -= confidence <= edges[index]
    return PredictedRows(
        predicted,
        confidence.astype(np.float32),
        true,
        index.astype(np.uint8),
        bin_table(index, confidence, predicted == labels, bins),
    )


def bin_table(
    index: NDArray[Any], confidence: NDArray[Any], right: NDArray[np.bool_], bins: int
) -> NDArray[np.float64]:
    """Return ``PredictedRows.sums``, (3, bins), from each row's bin, confidence and correctness."""
    return np.stack([np.bincount(index, each, bins) for each in (None, confidence, right)])


def _predicted(logits: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return each row's predicted class, its probability and the label's probability."""
    # Transposed, because numpy is slow at reducing many rows of few classes.
    shares = np.array(logits.T, np.float64, order="C")
    classes = np.arange(len(shares), dtype=np.min_scalar_type(len(shares)))[:, None]
    largest, own = shares.max(0), shares[labels, np.arange(len(labels))]
    if not np.isfinite(largest).all():
        raise ValueError("logits contain NaN, infinity or a row of only -inf")
    predicted = np.where(shares == largest, classes, classes[-1]).min(0)
    shares -= largest
    scale = np.exp(shares, out=shares).sum(0)
    true = (np.exp(own - largest) / scale).astype(np.float32)
    return predicted.astype(np.int64), 1 / scale, true


@dataclass(frozen=True, eq=False)
class RiskCoverageCurve:
    """The error rate of the most confident rows, for each number of rows.

    Attributes:
        coverage: Share of rows that are kept, (N,), from 1/N to 1.
        risk: Error rate of the kept rows, (N,), in [0, 1]; the last is the error of all rows.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]

    @property
    def area(self) -> float:
        """Area under the curve (AURC), the mean risk over all coverages: lower is better."""
        return float(self.risk.mean())


def risk_coverage_curve(
    logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike | None = None
) -> RiskCoverageCurve:
    """Return the error rates that remain when rows of low top-label confidence are rejected.

    The result is the mean over all orders of rows with equal confidence. For arguments and errors
    see ``calibration_report``.

    Source: Geifman and El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017;
    the area: Geifman, Uziel and El-Yaniv, Bias-Reduced Uncertainty Estimation for Deep Neural
    Classifiers, ICLR 2019.
    """
    scores = Scores(logits, probs, labels)
    confidence, order = scores.confidence.sort(descending=True)
    wrong = 1 - scores.correct[order]
    _, group, sizes = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    totals = torch.zeros(len(sizes), dtype=wrong.dtype, device=wrong.device)
    even = totals.index_add(0, group, wrong) / sizes
    kept = torch.arange(1, scores.num_rows + 1, dtype=wrong.dtype, device=wrong.device)
    risk = even[group].cumsum(0) / kept
    return RiskCoverageCurve((kept / scores.num_rows).cpu().numpy(), risk.cpu().numpy())
