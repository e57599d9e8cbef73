"""The one-versus-rest family whose curves are logistic in a few features of a probability."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainables.calibrators._binary import Curve, OneVersusRestCalibrator

LEAST, LEAST_REST = 1e-30, 1e-7  # Of p and of 1 - p, which is exact to this in single precision.
MAX_STEPS, HALVINGS = 50, 30
FLAT, RIDGE = 1e-9, 1e-12


class LogisticCalibrator(OneVersusRestCalibrator):
    """``sigmoid(w · x + b)`` a class, with x some features of its probability p.

    The fit has Platt's targets (Advances in Large Margin Classifiers, 1999), which stand for one
    row more of the class and one more of the rest: (n + 1) / (n + 2) for the n rows of the class
    and 1 / (N - n + 2) for the others. So no coefficient runs away where curves would separate
    rows.
    """

    coefficients: Tensor

    @staticmethod
    @abstractmethod
    def _features(log_p: Tensor, log_rest: Tensor) -> list[Tensor]:
        """Return the features, each in the shape of ``log p`` and ``log (1 - p)``."""

    @staticmethod
    def _coefficients(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the best coefficients, (D,), the intercept last; features are (N, D)."""
        return logistic_fit(features, targets)

    def _curve(self, scores: Tensor, hits: Tensor) -> Curve:
        columns = self._features(*_log_odds(scores.double().cpu()))
        features = torch.stack([*columns, torch.ones_like(columns[0])], 1).numpy()
        right = hits.cpu().numpy()
        count, rest = int(right.sum()), int((~right).sum())
        targets = np.where(right, (count + 1) / (count + 2), 1 / (rest + 2))
        return (self._coefficients(features, targets).tolist(),)

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


def logistic_fit(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the coefficients (D,) of a logistic regression on targets inside (0, 1), by Newton.

    Args:
        features: (N, D), float64.
        targets: (N,), float64.
    """
    at = np.zeros(features.shape[1])
    loss = _logistic_loss(features, targets, at)
    for _ in range(MAX_STEPS):
        probs = 1 / (1 + np.exp(-features @ at))
        gradient = features.T @ (probs - targets)
        curvature = features.T @ (features * (probs * (1 - probs))[:, None])
        curvature += RIDGE * max(float(curvature.trace()), 1.0) * np.eye(len(at))
        step = np.linalg.solve(curvature, gradient)
        if float(step @ gradient) <= FLAT * len(targets):
            return at - step
        for _ in range(HALVINGS):
            nearer = _logistic_loss(features, targets, at - step)
            if nearer < loss:
                break
            step = step / 2
        else:
            break
        at, loss = at - step, nearer
    return at


def _logistic_loss(features: np.ndarray, targets: np.ndarray, at: np.ndarray) -> float:
    scores = features @ at
    return float(np.logaddexp(0, scores).sum() - targets @ scores)
