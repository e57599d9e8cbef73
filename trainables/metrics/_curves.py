"""The numbers behind reliability diagrams and risk-coverage curves."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainables.common.fields import check_choice, check_count
from trainables.common.later import Tensor, torch
from trainables.metrics._scores import ArrayLike, Binned, Scores, bin_index, mass_edges, width_edges


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

    Raises:
        ValueError: Also if ``scheme`` is neither.
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
    """The top label of each row, with its place in the bins of ECE; each array (N,).

    Attributes:
        predicted: The first class with the largest score, int64.
        confidence: Its probability, float32.
        true: The probability of the label, float32.
        bins: The bin of the confidence, from 0, uint8.
        sums: Count, confidences and right rows of each bin, (3, bins), float64.
    """

    predicted: NDArray[np.int64]
    confidence: NDArray[np.float32]
    true: NDArray[np.float32]
    bins: NDArray[np.uint8]
    sums: NDArray[np.float64]


def predicted_rows(logits: Tensor, labels: Tensor, bins: int = 15) -> PredictedRows:
    """Return rows as lists show them. Bins are those of ECE, of at most 256.

    Args:
        logits: (N, K), unnormalised or log-probabilities, in memory of the CPU.
        labels: (N,), integers in [0, K).
        bins: Number of bins of equal width.

    Raises:
        ValueError: If rows are not as ``calibration_report`` wants them.
    """
    scores = Scores(logits, None, labels)
    edges = width_edges(bins, scores.edge_dtype, scores.labels.device)
    confidence = scores.confidence[None]
    binned = Binned(confidence, scores.correct[None], edges)
    return PredictedRows(
        logits.max(dim=1).indices.numpy(),
        scores.confidence.float().numpy(),
        scores.nll.neg().exp().float().numpy(),
        bin_index(confidence, edges)[0].numpy().astype(np.uint8),
        torch.cat((binned.counts, binned.scores, binned.hits)).numpy(),
    )


@dataclass(frozen=True, eq=False)
class RiskCoverageCurve:
    """The share of errors among the most confident rows, for each number of them.

    Attributes:
        coverage: Share of rows that are kept, (N,), from 1/N to 1.
        risk: Share of errors among those, (N,), in [0, 1]; the last is the error of all rows.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]

    @property
    def area(self) -> float:
        """Area under the curve (AURC), the mean risk over all coverages: lower is better."""
        return float(self.risk.mean())


def risk_coverage_curve(
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> RiskCoverageCurve:
    """Return the errors that are left when rows of low top-label confidence are turned away.

    Rows of equal confidence have no order, so their errors are spread evenly over them: that is
    the mean over all orders. For arguments and errors see ``calibration_report``.

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
