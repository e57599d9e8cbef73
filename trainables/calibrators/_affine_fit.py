"""The penalised likelihood of an affine map, in coordinates in which it bends alike everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport, chunks
from trainables.calibrators._minimize import lbfgs
from trainables.calibrators._passes import residuals_in_place, softmax_in_place

SINGLE_PRECISION_CLASSES = 200
TOLERANCE = 1e-7
CORRECTIONS = 6
FLATTEST, TINY = 1e-8, 1e-12


def product_precision(num_classes: int) -> torch.dtype:
    """Return the precision of matrix products, which are all of the time where K is large."""
    return torch.float32 if num_classes > SINGLE_PRECISION_CLASSES else torch.float64


class AffineFit:
    """Mean negative log-likelihood of ``softmax(W f + b)`` plus ODIR, ready to be minimised.

    The features of a network lie far from the origin and are anything but alike, so that plain
    gradients crawl. W and b together, (K, K + 1), are therefore multiplied by the inverse root of
    the curvature that the features have at the start, averaged over the classes: a change of
    variables that leaves the minimum where it is.

    Args:
        logits: (N, K).
        offsets: What is subtracted from each row of the logits to give its features, (N,).
        labels: (N,), int64.
        penalties: Weights of the squared off-diagonal entries of W and of the squared biases.
    """

    def __init__(
        self, logits: Tensor, offsets: Tensor, labels: Tensor, penalties: tuple[float, float]
    ) -> None:
        self._logits, self._labels = logits, labels
        self._outside, self._bias = penalties
        self._dtype = product_precision(logits.shape[1])
        self._offsets = offsets.to(self._dtype)

    def minimize(self, temperature: Tensor) -> tuple[Tensor, Tensor, FitReport]:
        """Return matrix (K, K) and bias (K,), float64, starting at ``z / temperature``."""
        classes = self._logits.shape[1]
        eye = torch.eye(classes, classes + 1, dtype=torch.float64, device=self._logits.device)
        curvature, own = self._curvatures(eye / temperature)
        values, vectors = torch.linalg.eigh(curvature)
        roots = values.clamp(min=max(FLATTEST * float(values[-1]), TINY)).sqrt()
        shrink = (vectors / roots) @ vectors.T
        shrink_own = own.clamp(min=max(FLATTEST * float(own.max()), TINY)).rsqrt()
        start = [torch.zeros_like(eye), (1 / temperature / shrink_own).expand(classes)]

        def put_together(parameters: Sequence[Tensor]) -> Tensor:
            weights = parameters[0] @ shrink
            weights.diagonal().add_(parameters[1] * shrink_own)
            return weights

        def evaluate(parameters: Sequence[Tensor]) -> tuple[float, Sequence[Tensor]]:
            value, gradient = self._evaluate(put_together(parameters))
            return value, [gradient @ shrink, gradient.diagonal() * shrink_own]

        found, report = lbfgs(evaluate, start, tolerance=TOLERANCE, corrections=CORRECTIONS)
        mapped = put_together(found)
        return mapped[:, :-1].contiguous(), mapped[:, -1].clone(), report

    def _evaluate(self, weights: Tensor) -> tuple[float, Tensor]:
        """Return the objective at W and b, (K, K + 1), and its gradient."""
        gradient = torch.zeros_like(weights)
        total = 0.0
        map_to = weights.to(self._dtype)
        for part in chunks(self._logits):
            features = self._features(part)
            mapped = self._map(map_to, features)
            residuals, losses = residuals_in_place(mapped, self._labels[part])
            total += float(losses.double().sum())
            gradient[:, :-1] += residuals.T @ features
            gradient[:, -1] += residuals.sum(0)
        penalty = self._penalise(weights, gradient.div_(len(self._labels)))
        return total / len(self._labels) + penalty, gradient

    def _features(self, part: slice) -> Tensor:
        return self._logits[part].to(self._dtype) - self._offsets[part].unsqueeze(1)

    @staticmethod
    def _map(weights: Tensor, features: Tensor) -> Tensor:
        return torch.addmm(weights[:, -1], features, weights[:, :-1].T)

    def _penalise(self, weights: Tensor, gradient: Tensor) -> float:
        """Return the penalty and add its gradient to ``gradient``."""
        outside, bias = weights[:, :-1], weights[:, -1]
        gradient[:, :-1].add_(outside, alpha=2 * self._outside)
        gradient.diagonal().sub_(outside.diagonal(), alpha=2 * self._outside)
        gradient[:, -1].add_(bias, alpha=2 * self._bias)
        squares = outside.square().sum() - outside.diagonal().square().sum()
        return float(self._outside * squares + self._bias * bias.square().sum())

    def _curvatures(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the curvature averaged over classes, (K + 1, K + 1), and of the diagonal, (K,)."""
        classes = start.shape[0]
        weights = start.to(self._dtype)
        total = torch.zeros(classes + 1, classes + 1, dtype=torch.float64, device=start.device)
        own = torch.zeros_like(total[0, :-1])
        for part in chunks(self._logits):
            features = self._features(part)
            mapped = self._map(weights, features)
            probabilities, _ = softmax_in_place(mapped, self._labels[part])
            bend = probabilities * (1 - probabilities)
            own += (bend * features.square()).sum(0)
            scaled = torch.cat([features, torch.ones_like(features[:, :1])], 1)
            scaled *= bend.mean(1, keepdim=True).clamp(min=0).sqrt()
            total += scaled.T @ scaled
        total /= len(self._labels)
        total.diagonal()[:-1] += 2 * self._outside
        total[-1, -1] += 2 * self._bias
        return total, own / len(self._labels)
