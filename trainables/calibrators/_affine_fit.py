"""The fit of an affine map by penalised likelihood, in coordinates of equal curvature."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators._minimize import lbfgs, residuals_in_place, softmax_in_place
from trainables.common.logit_rows import MASKED, find_masked, raise_masked, row_blocks

SINGLE_PRECISION_CLASSES = 50
TOLERANCE = 1e-7
CORRECTIONS = 6
EASE = 0.1  # Factor of the pull on diagonal and biases, which are few and determined by many rows.
FLATTEST, TINY = 1e-8, 1e-12


def product_precision(num_classes: int) -> torch.dtype:
    """Return the precision of matrix products: single for more than 50 classes, to save time."""
    return torch.float32 if num_classes > SINGLE_PRECISION_CLASSES else torch.float64


class AffineFit:
    """Mean negative log-likelihood of ``softmax(W f + b)`` plus ODIR, to be minimised.

    ``minimize`` may add a penalty that pulls the map towards ``softmax(f / T)``. With V = T W it is
    ``pull * (sum of V_ij^2, i != j, + EASE * sum of (V_ii - 1)^2 + EASE * sum of b_i^2)``. T makes
    it independent of the scale of the logits.

    A network's features are far from the origin and have very different scales, so that gradient
    steps converge slowly. The search therefore changes P (K, K + 1) and d (K,) in
    ``(W, b) = start + P R``, with ``s d`` added to the diagonal of W. R is the inverse root of the
    initial curvature, averaged over the classes, and s that of the diagonal's curvature. This
    change of variables does not move the minimum.

    Args:
        logits: (N, K).
        offsets: Subtracted from each row of the logits to give its features, (N,).
        labels: (N,), int64.
        temperature: T, (1,), float64.
        odir: Weights of the squared off-diagonal entries of W and of the squared biases.
    """

    def __init__(
        self,
        logits: Tensor,
        offsets: Tensor,
        labels: Tensor,
        temperature: Tensor,
        odir: tuple[float, float],
    ) -> None:
        self._masked = find_masked(logits)
        self._logits = raise_masked(logits, self._masked)
        self._labels, self._temperature = labels, temperature
        self._offdiag, self._bias = odir
        self._dtype = product_precision(logits.shape[1])
        self._offsets = offsets.to(self._dtype)
        shape = logits.shape[1], logits.shape[1] + 1
        self.scaled = torch.eye(*shape, dtype=torch.float64, device=logits.device) / temperature

    def minimize(
        self, pull: float = 0.0, start: Tensor | None = None, tolerance: float = TOLERANCE
    ) -> tuple[Tensor, FitReport]:
        """Return W and b, (K, K + 1), float64, and the report; see ``PulledFit``."""
        origin = self.scaled if start is None else start
        penalty = self._penalty(pull)
        curvature, own = self._curvatures(penalty)
        values, vectors = torch.linalg.eigh(curvature)
        roots = values.clamp(min=max(FLATTEST * float(values[-1]), TINY)).sqrt()
        shrink = (vectors / roots) @ vectors.T
        shrink_own = own.clamp(min=max(FLATTEST * float(own.max()), TINY)).rsqrt()
        nowhere = [torch.zeros_like(origin), torch.zeros_like(own)]

        def put_together(parameters: Sequence[Tensor]) -> Tensor:
            weights = origin + parameters[0] @ shrink
            weights.diagonal().add_(parameters[1] * shrink_own)
            return weights

        def evaluate(parameters: Sequence[Tensor]) -> tuple[float, Sequence[Tensor]]:
            value, gradient = self._evaluate(put_together(parameters), penalty)
            return value, [gradient @ shrink, gradient.diagonal() * shrink_own]

        found, report = lbfgs(evaluate, nowhere, tolerance=tolerance, corrections=CORRECTIONS)
        return put_together(found), report

    def loss(self, weights: Tensor) -> float:
        """Return the sum of ``-log p_y`` over the rows at W and b, (K, K + 1)."""
        rows = self._mapped(weights)
        return sum(float(softmax_in_place(z, y)[1].double().sum()) for y, _, z in rows)

    def _penalty(self, pull: float) -> Tensor:
        """Return the weight of each squared distance of W and b from ``scaled``, (K, K + 1)."""
        squared = float(self._temperature.square())
        weights = torch.full_like(self.scaled, self._offdiag + pull * squared)
        weights.diagonal().fill_(EASE * pull * squared)
        weights[:, -1] = self._bias + EASE * pull
        return weights

    def _evaluate(self, weights: Tensor, penalty: Tensor) -> tuple[float, Tensor]:
        """Return the objective at W and b, (K, K + 1), and its gradient."""
        gradient = torch.zeros_like(weights)
        total = 0.0
        for labels, features, mapped in self._mapped(weights):
            residuals, losses = residuals_in_place(mapped, labels)
            total += float(losses.double().sum())
            gradient[:, :-1] += residuals.T @ features
            gradient[:, -1] += residuals.sum(0)
        pulled = penalty * (weights - self.scaled)
        away = float((pulled * (weights - self.scaled)).sum())
        gradient.div_(len(self._labels)).add_(pulled, alpha=2)
        return total / len(self._labels) + away, gradient

    def _mapped(self, weights: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield labels, features f and ``W f + b`` of blocks of rows."""
        map_to = weights.to(self._dtype)
        for part in row_blocks(self._logits):
            features = self._logits[part].to(self._dtype) - self._offsets[part].unsqueeze(1)
            mapped = torch.addmm(map_to[:, -1], features, map_to[:, :-1].T)
            if self._masked is not None:
                mapped.masked_fill_(self._masked[part], -MASKED)
            yield self._labels[part], features, mapped

    def _curvatures(self, penalty: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objective's curvature at ``scaled``.

        The first tensor, (K + 1, K + 1), is for the row of (W, b) of one class, averaged over the
        classes; the second, (K,), is for each entry of W's diagonal.
        """
        classes = len(penalty)
        total = penalty.new_zeros(classes + 1, classes + 1)
        own = torch.zeros_like(total[0, :-1])
        for labels, features, mapped in self._mapped(self.scaled):
            probabilities, _ = softmax_in_place(mapped, labels)
            bend = probabilities * (1 - probabilities)
            own += (bend * features.square()).sum(0)
            scaled = torch.cat([features, torch.ones_like(features[:, :1])], 1)
            scaled *= bend.mean(1, keepdim=True).clamp(min=0).sqrt()
            total += scaled.T @ scaled
        total /= len(self._labels)
        total.diagonal()[:-1] += 2 * penalty[0, 1]
        total[-1, -1] += 2 * penalty[0, -1]
        return total, own / len(self._labels) + 2 * penalty[0, 0]
