"""The one-versus-rest family whose curves are logistic in a few features of a probability."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._binary import Curve, OneVersusRestCalibrator
from trainables.common.fields import fitted

LEAST, LEAST_REST = 1e-30, 1e-7  # Lower limits of p and of 1 - p (its rounding error in float32).
MAX_STEPS, HALVINGS = 50, 30
FLAT, RIDGE = 1e-7, 1e-12
BLOCK_VALUES = 1 << 16  # Rows times classes of a block, so that temporaries fit in the cache.


class LogisticCalibrator(OneVersusRestCalibrator):
    """``sigmoid(w · x + b)`` for each class, where x are features of its probability p.

    The fit uses Platt's targets (Advances in Large Margin Classifiers, 1999), which correspond to
    one more row of the class and of the rest: (n + 1) / (n + 2) for the n rows of the class and
    1 / (N - n + 2) for the others. So coefficients stay finite even if rows are separable.

    Attributes:
        identity: Coefficients of the identity map, the intercept last; the fit starts there.
    """

    identity: ClassVar[Sequence[float]]
    coefficients: Tensor = fitted()

    @staticmethod
    @abstractmethod
    def _features(log_p: Tensor, log_rest: Tensor) -> list[Tensor]:
        """Return the features, each with the shape of ``log p`` and ``log (1 - p)``."""

    def _coefficients(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the best coefficients (C, D) of features (C, D, N); the last feature is 1."""
        return logistic_fits(features, targets, self.identity)

    def _curves(self, scores: Tensor, hits: Tensor, masked: Tensor | None) -> Iterator[Curve]:
        seen = torch.ones_like(hits) if masked is None else ~masked
        step = max(1, BLOCK_VALUES // scores.shape[1])
        for block, right, shown in zip(
            *(values.split(step) for values in (scores, hits, seen)), strict=True
        ):
            columns = self._features(*_log_odds(block.double()))
            features = torch.stack([*columns, torch.ones_like(columns[0])], 1)
            count = right.sum(1, keepdim=True)
            rest = shown.sum(1, keepdim=True) - count
            targets = torch.where(right, (count + 1) / (count + 2), 1 / (rest + 2))
            if masked is not None:  # Rows with features of 0 do not affect the coefficients.
                features *= shown.unsqueeze(1)
            found = self._coefficients(features, targets.double())
            yield from ((values,) for values in found.tolist())

    def _keep(self, curves: Sequence[Curve]) -> None:
        self.coefficients = torch.tensor([list(found) for (found,) in curves], dtype=torch.float64)

    def _map(self, probabilities: Tensor) -> Tensor:
        *weights, intercept = self.coefficients.to(probabilities.device).T
        columns = self._features(*_log_odds(probabilities))
        scores = sum((w * x for w, x in zip(weights, columns, strict=True)), intercept)
        return torch.sigmoid(scores)

    def _summary(self) -> dict[str, float]:
        """Return the mean of each coefficient over the classes, the intercept last."""
        means = self.coefficients.mean(0).tolist()
        return {f"coefficient_{index}": value for index, value in enumerate(means)}


def _log_odds(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    return probabilities.clamp(min=LEAST).log(), (1 - probabilities).clamp(min=LEAST_REST).log()


def logistic_fits(features: Tensor, targets: Tensor, start: Sequence[float]) -> Tensor:
    """Return the coefficients (C, D) of C logistic regressions on soft targets, by Newton's method.

    Features are (C, D, N), targets (C, N) inside (0, 1), both float64; ``start`` is (D,).
    """
    found = features.new_tensor(start).repeat(len(features), 1)
    # Regressions that still improve: their position, features, targets, coefficients and loss.
    left, x, wanted = torch.arange(len(found), device=found.device), features, targets
    at, loss = found.clone(), _losses(features, targets, found)
    for _ in range(MAX_STEPS):
        gradient, curvature = _slopes(x, wanted, at)
        step = torch.linalg.solve(curvature, gradient)
        settled = (step * gradient).sum(1) <= FLAT * targets.shape[1]
        lower = _losses(x, wanted, at - step)
        for _ in range(HALVINGS):
            worse = ~(settled | (lower < loss))
            if not worse.any():
                break
            step[worse] /= 2
            lower[worse] = _losses(x[worse], wanted[worse], (at - step)[worse])
        gains = lower < loss
        at = torch.where((settled | gains).unsqueeze(1), at - step, at)
        found[left], going = at, gains & ~settled
        if not going.any():
            break
        left, x, wanted, at, loss = (part[going] for part in (left, x, wanted, at, lower))
    return found


def _slopes(features: Tensor, targets: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses' gradient (C, D) and curvature (C, D, D) at coefficients (C, D)."""
    probs = torch.sigmoid(_scores(features, at))
    gradient = (features @ (probs - targets).unsqueeze(2)).squeeze(2)
    curvature = (features * (probs * (1 - probs)).unsqueeze(1)) @ features.transpose(1, 2)
    diagonal = curvature.diagonal(dim1=1, dim2=2)
    diagonal += RIDGE * diagonal.sum(1, keepdim=True).clamp(min=1)
    return gradient, curvature


def _losses(features: Tensor, targets: Tensor, at: Tensor) -> Tensor:
    scores = _scores(features, at)
    return -(F.logsigmoid(-scores) + targets * scores).sum(1)


def _scores(features: Tensor, at: Tensor) -> Tensor:
    return (at.unsqueeze(1) @ features).squeeze(1)
