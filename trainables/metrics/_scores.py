"""Checks what a metric is given and reads it as float64 probabilities, a block at a time."""

from collections.abc import Iterator
from typing import TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.common.logit_rows import as_tensor, check_labels, row_blocks

ArrayLike: TypeAlias = Tensor | NDArray

BLOCK_ELEMENTS = 1 << 22
"""Most probabilities held in float64 at once; bounds memory whatever N and K are."""

SUM_TOLERANCE = 1e-3
"""How far a row of probabilities may sum from 1 (half precision: two steps of its own)."""


class Scores:
    """Scores of N rows and K classes with their labels, checked, as float64 probabilities.

    The whole (N, K) matrix is never copied into float64: rows are summed up once and class columns
    are computed when ``columns`` gives them out.

    Args:
        logits: (N, K), finite or minus infinity; log-probabilities will do.
        probs: (N, K), non-negative, rows summing to 1. Exactly one of the two is given.
        labels: (N,), integers in [0, K).

    Attributes:
        num_rows: N.
        num_classes: K.
        confidence: Largest probability of each row, (N,), float64.
        correct: 1.0 where the first class with the largest score is the label, (N,), float64.
        nll: ``-log p_y`` of each row, (N,), float64.
        brier: ``sum_k (p_k - [k = y])^2`` of each row, (N,), float64.
        edge_dtype: Precision to which bin edges are rounded: that of given probabilities, so that
            the float32 nearest to 1/10 lies on the edge 1/10.

    Raises:
        ValueError: If anything above does not hold; one line that says what.
    """

    def __init__(
        self, logits: ArrayLike | None, probs: ArrayLike | None, labels: ArrayLike | None
    ) -> None:
        if (logits is None) == (probs is None):
            given = "neither" if logits is None else "both"
            raise ValueError(f"give exactly one of logits and probs, got {given}")
        self._name = "probs" if logits is None else "logits"
        self.values = read_values(probs if logits is None else logits, self._name)
        self.labels = read_labels(labels, self.values)
        self.num_rows, self.num_classes = self.values.shape
        self.edge_dtype = torch.float64 if logits is not None else self.values.dtype
        self._summarise()

    def columns(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield blocks of C classes: probabilities and label indicators, both (C, N), float64."""
        step = max(1, BLOCK_ELEMENTS // self.num_rows)
        for first in range(0, self.num_classes, step):
            block = self.values[:, first : first + step].double()
            if self._name == "logits":
                block = block.sub(self._shift).exp_().div_(self._scale)
            classes = torch.arange(first, first + block.shape[1], device=block.device)
            yield block.T.contiguous(), (self.labels == classes[:, None]).double()

    def _summarise(self) -> None:
        blocks = row_blocks(self.values)
        parts = (self._rows(self.values[part].double(), self.labels[part]) for part in blocks)
        shift, scale, squares, true, predicted = map(torch.cat, zip(*parts, strict=True))
        self.correct = (predicted == self.labels).double()
        if self._name == "logits":
            self._shift, self._scale = shift[:, None], scale[:, None]
            self.confidence, self.nll = scale.reciprocal(), scale.log() + (shift - true)
            true, squares = self.nll.neg().exp(), squares / scale.square()
        else:
            _check_sums(scale, self.values.dtype)
            self.confidence, self.nll = shift, -true.log()
        # Rounding may leave a row that is as good as right a little below 0.
        self.brier = (squares - 2 * true + 1).clamp_(min=0)

    def _rows(self, block: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return maximum, sum, sum of squares, true class's score and prediction of each row.

        Sums are of the exponentials of logits, the largest of each row at 0.
        """
        largest, predicted = block.max(dim=1)
        check_values(block, largest, self._name)
        true = block.gather(1, labels[:, None]).squeeze(1)
        if self._name == "logits":
            block = block.sub(largest[:, None]).exp_()
        return largest, block.sum(dim=1), block.square().sum(dim=1), true, predicted


def read_values(values: ArrayLike | None, name: str) -> Tensor:
    assert values is not None
    tensor = as_tensor(values, name)
    if tensor.ndim != 2 or tensor.shape[0] < 1 or tensor.shape[1] < 2:
        raise ValueError(
            f"{name} have shape {tuple(tensor.shape)}; expected (N, K) with N >= 1 and K >= 2"
        )
    return tensor if tensor.is_floating_point() else tensor.double()


def read_labels(labels: ArrayLike | None, values: Tensor) -> Tensor:
    if labels is None:
        raise ValueError("labels are missing")
    return check_labels(labels, values)


def check_values(block: Tensor, largest: Tensor, name: str) -> None:
    # max propagates NaN, so one test a row finds NaN, plus infinity and rows of minus infinity
    if not largest.isfinite().all():
        raise ValueError(f"{name} hold NaN or infinity, or a row of nothing but -inf")
    if name == "probs" and (lowest := float(block.min())) < 0:
        raise ValueError(f"probs hold {lowest!r}; expected values in [0, 1]")


def _check_sums(sums: Tensor, dtype: torch.dtype) -> None:
    worst = float(sums[(sums - 1).abs().argmax()])
    if abs(worst - 1) > max(SUM_TOLERANCE, 2 * torch.finfo(dtype).eps):
        raise ValueError(
            f"a row of probs sums to {worst:.6g}; expected 1 (logits go in as logits=)"
        )
