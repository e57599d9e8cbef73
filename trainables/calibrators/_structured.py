"""Structured scaling: temperature scaling, then a penalised map of the log-probabilities."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import FitReport, ObjectiveCalibrator, by_block
from trainables.calibrators._minimize import (
    WeightedLoss,
    minimize,
    residuals_in_place,
    row_gradients,
    row_terms,
)
from trainables.calibrators._temperature import divide, fit_temperature
from trainables.calibrators.objectives import Objective
from trainables.common.fields import fitted, number
from trainables.common.logit_rows import MASKED, find_masked, row_blocks

SINGLE_PRECISION_CLASSES = 50  # From this number on, matrices are multiplied in single precision.
TOLERANCE, SINGLE_TOLERANCE = 1e-9, 1e-7
LEAST_CURVATURE = 1e-12


class StructuredCalibrator(ObjectiveCalibrator):
    """``softmax(f + D f + b)`` of the log-probabilities f of temperature scaling.

    Berta et al., Structured Matrix Scaling for Multi-Class Calibration, arXiv 2511.03685, with the
    defaults of its code. T is fitted first, and the uniform distribution is mixed in with the
    weight of one row, so that f is bounded; then D and b are fitted with fixed T. The penalty on
    the mean objective is K / N times the squared biases and diagonal entries of D, and K (K - 1) /
    N times its squared off-diagonal entries, each with its own weight. The penalty vanishes as the
    number of rows N grows.

    Args:
        weight_diag: Weight of the squared diagonal of D, >= 0.
        weight_bias: Weight of the squared biases, >= 0.
    """

    weight_diag: float = number(default=1.0, low=0.0)
    weight_bias: float = number(default=1.0, low=0.0)
    temperature: Tensor = fitted()
    uniform: Tensor = fitted()
    change: Tensor = fitted()

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        self.temperature, scaled = fit_temperature(logits, labels, self.objective)
        self.uniform = torch.full_like(self.temperature, 1 / (len(labels) + 1))
        features = by_block(logits, lambda rows: self._features(rows.double()).to(logits.dtype))
        masked = find_masked(logits)
        loss = StructuredLoss(features, labels, self.objective, self._penalty(logits), masked)
        self.change, report = loss.solve()
        return report.after(scaled)

    @abstractmethod
    def _penalty(self, logits: Tensor) -> Tensor:
        """Return the weight of each squared entry of D and b, with the shape of ``change``."""

    def _features(self, logits: Tensor) -> Tensor:
        log_probs = divide([self.temperature.to(logits.device)], logits)
        uniform = self.uniform.to(logits.device)
        return torch.logaddexp(log_probs + (1 - uniform).log(), (uniform / logits.shape[1]).log())

    def _transform(self, logits: Tensor) -> Tensor:
        dtype = change_precision(self.change)
        mapped = moved(self.change.to(logits.device, dtype), self._features(logits).to(dtype))
        return F.log_softmax(mapped.double(), dim=1)


def change_precision(change: Tensor) -> torch.dtype:
    """Return the precision of a map's products: single for a large matrix, to save time."""
    return torch.float32 if len(change) >= SINGLE_PRECISION_CLASSES else torch.float64


def moved(change: Tensor, features: Tensor) -> Tensor:
    """Return ``f + D f + b``, (N, K), for D and b, (K, K + 1), or D's diagonal and b, (2, K)."""
    if change.shape[1] == features.shape[1]:
        return torch.addcmul(features + change[1], features, change[0])
    return torch.addmm(features + change[:, -1], features, change[:, :-1].T)


def sums(like: Tensor, values: Tensor, features: Tensor) -> Tensor:
    """Return the sums over rows of values (N, K) times features, and of values.

    The result has the shape of ``like``, (K, K + 1) or (2, K); see ``moved``.
    """
    if like.shape[1] == features.shape[1]:
        return torch.stack([(values * features).sum(0), values.sum(0)])
    return torch.cat([values.T @ features, values.sum(0).unsqueeze(1)], 1)


class StructuredLoss(WeightedLoss):
    """The penalised objective of mapped rows, as a function of the change, D and b.

    The unit of each entry of the change is the inverse root of its initial curvature, so that all
    entries have equal curvature.

    Args:
        features: Log-probabilities of temperature scaling, (N, K).
        labels: (N,), int64.
        objective: The fitting objective.
        penalty: Weights of the squared entries of the change in the mean objective, with its shape.
        masked: Classes that get no probability, (N, K); None if there are none.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        objective: Objective,
        penalty: Tensor,
        masked: Tensor | None = None,
    ) -> None:
        super().__init__(features, labels, objective)
        self._masked = masked
        self._penalty, self._dtype = penalty, change_precision(penalty)
        self._unit = torch.ones_like(penalty)
        self._unit = (2 * penalty + self._curvature()).clamp(min=LEAST_CURVATURE).rsqrt()

    def solve(self) -> tuple[Tensor, FitReport]:
        """Return the best change, float64, and the report."""
        tolerance = SINGLE_TOLERANCE if self._dtype == torch.float32 else TOLERANCE
        (found,), report = minimize(self, [torch.zeros_like(self._unit)], tolerance=tolerance)
        return self._unit * found, report

    def row_losses(self, parameters: Sequence[Tensor]) -> Tensor:
        change = (self._unit * parameters[0]).to(self._dtype)
        out = parameters[0].new_empty(len(self.labels))
        for part in row_blocks(self.logits):
            mapped, masked = self._mapped(change, part)
            log_probs = F.log_softmax(mapped, dim=1)
            terms = row_terms(log_probs, self.labels[part], self.objective, masked)
            out[part] = self.objective.per_row(terms)
        return out

    def evaluate(
        self, parameters: Sequence[Tensor], weights: Tensor
    ) -> tuple[float, Sequence[Tensor]]:
        """Return the penalised sum of weighted losses, and its gradient."""
        change = self._unit * parameters[0]
        gradient, total, single = torch.zeros_like(change), 0.0, change.to(self._dtype)
        for part in self._blocks():
            features, counts = self.logits[part].to(self._dtype), weights[part].to(self._dtype)
            mapped, masked = self._mapped(single, part)
            losses, slopes = mapped_slopes(mapped, self.labels[part], self.objective, masked)
            total += float((counts * losses).double().sum())
            gradient += sums(change, slopes * counts.unsqueeze(1), features)
        pulled = weights.sum() * self._penalty * change
        value = total + float((pulled * change).sum())
        return value, [(gradient + 2 * pulled) * self._unit]

    def _mapped(self, change: Tensor, part: slice) -> tuple[Tensor, Tensor | None]:
        """Return the mapped logits of a block of rows, and the mask (None if none is masked)."""
        mapped = moved(change, self.logits[part].to(self._dtype))
        if self._masked is None:
            return mapped, None
        return mapped.masked_fill_(self._masked[part], -MASKED), self._masked[part]

    def _blocks(self) -> list[slice]:
        # Blocks are long, because adding a (K, K) matrix takes as long as computing it from K rows.
        return row_blocks(self.logits, least=len(self._penalty))

    def _curvature(self) -> Tensor:
        """Return the initial second derivative of the mean ``-log p_y`` by each entry."""
        total = torch.zeros_like(self._penalty)
        for part in self._blocks():
            features = self.logits[part].to(self._dtype)
            probs = features.exp()
            total += sums(total, probs * (1 - probs), features.square())
        return total.div_(len(self.labels))


def mapped_slopes(
    mapped: Tensor, labels: Tensor, objective: Objective, masked: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, (N,), and its derivative by the mapped logits, (N, K)."""
    if objective.log_loss:
        slopes, losses = residuals_in_place(mapped, labels)
        return losses, slopes
    log_probs = F.log_softmax(mapped, dim=1)
    terms = row_terms(log_probs, labels, objective, masked)
    losses, pulls = row_gradients(objective, terms)
    to_label, to_mean, to_square = (pull.unsqueeze(1) for pull in pulls)
    probs = log_probs.exp_()
    slopes = probs * -(to_label + to_mean)
    if objective.needs_mean:
        allowed = mapped.shape[1] if masked is None else (~masked).sum(1, keepdim=True)
        slopes += to_mean / allowed
        if masked is not None:
            slopes.masked_fill_(masked, 0)
    if objective.needs_square:
        slopes += 2 * to_square * probs * (probs - terms.sum_p2.unsqueeze(1))
    return losses, slopes.scatter_add_(1, labels.unsqueeze(1), to_label.contiguous())
