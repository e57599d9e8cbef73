"""Ensemble temperature scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import optimize
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import FitReport, chunks
from trainables.calibrators._checks import check_choice
from trainables.calibrators._groups import fit_temperature
from trainables.calibrators._passes import row_gradients
from trainables.calibrators._registry import CALIBRATORS
from trainables.calibrators._scipy import scipy_minimize
from trainables.calibrators._temperature import TemperatureCalibrator
from trainables.calibrators.objectives import Objective, RowTerms, build_objective

START = np.array([1.0, 0.0, 0.0])
PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
MAX_ROUNDS = 30
TOLERANCE = 1e-8
TINY = 1e-300


@CALIBRATORS.register("ets")
class EnsembleTemperatureScaling(TemperatureCalibrator):
    """Mixes scaled, plain and uniform probabilities (Zhang et al., Mix-n-Match, ICML 2020).

    ``p = w1 softmax(z / T) + w2 softmax(z) + w3 / K`` with weights on the simplex. T is fitted
    first, then the weights with T held (eq. 13 of the class-wise scaling paper has the same two
    steps). The mixture keeps the order of every row. The class-wise scaling code mixes logits
    instead, where the uniform part does nothing and the rest is a temperature: use ``ts`` to
    compare with its figures. Little is gained over ``ts`` where one temperature fits everywhere.

    Args:
        variant: ``paper`` fits T and weights with the chosen objective; ``released`` uses squared
            error for both, whatever the objective, as the Mix-n-Match code does. The default obeys
            the choice of objective.

    Raises:
        ValueError: If ``variant`` is neither.
    """

    name = "ets"
    state_names = ("temperature", "weights")
    temperature: Tensor
    weights: Tensor

    def __init__(self, *, variant: str = "paper") -> None:
        super().__init__()
        self.variant = check_choice("variant", variant, ("paper", "released"))

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        objective = build_objective("mse") if self.variant == "released" else self.objective
        self.temperature, scaled = fit_temperature(logits, labels, objective)
        members = collect_members(logits, labels, self.temperature, objective)
        self.weights, report = fit_weights(members, labels, logits.shape[1], objective)
        return FitReport(
            scaled.converged and report.converged,
            scaled.iterations + report.iterations,
            report.objective,
            "; ".join(filter(None, (scaled.note, report.note))),
        )

    def _temperatures(self, logits: Tensor) -> Tensor:
        return self.temperature.to(logits.device)

    def _transform(self, logits: Tensor) -> Tensor:
        log_weights = self.weights.to(logits.device).log()
        scaled = super()._transform(logits) + log_weights[0]
        plain = F.log_softmax(logits, dim=1) + log_weights[1]
        uniform = log_weights[2] - math.log(logits.shape[1])
        return torch.logaddexp(torch.logaddexp(scaled, plain), uniform)

    def summary(self) -> dict[str, float]:
        """Return ``temperature``, ``weight_scaled``, ``weight_plain`` and ``weight_uniform``."""
        self.require_fitted()
        names = ("weight_scaled", "weight_plain", "weight_uniform")
        weights = dict(zip(names, self.weights.tolist(), strict=True))
        return {"temperature": float(self.temperature), **weights, **self.objective.state()}


@dataclass(frozen=True)
class Members:
    """What the weights' fit needs of the three members.

    Attributes:
        label: Probability of the label under each member, (N, 3).
        gram: Sums over classes of the products of two members, in the order of ``PAIRS``, (N, 6);
            empty unless the objective needs squares.
        logits: The fitting rows and temperature, to recompute probabilities chunk by chunk.
        temperature: (1,).
    """

    label: Tensor
    gram: Tensor
    logits: Tensor
    temperature: Tensor


def collect_members(
    logits: Tensor, labels: Tensor, temperature: Tensor, objective: Objective
) -> Members:
    """Compute what does not depend on the weights, chunk by chunk."""
    label, gram = [], []
    for part in chunks(logits):
        softmaxes = _softmaxes(logits[part].double(), temperature)
        members = (*softmaxes, torch.full_like(softmaxes[0], 1 / logits.shape[1]))
        index = labels[part].unsqueeze(1)
        label.append(torch.cat([m.gather(1, index) for m in members], dim=1))
        if objective.needs_square:
            gram.append(torch.stack([(members[a] * members[b]).sum(1) for a, b in PAIRS], dim=1))
    return Members(
        torch.cat(label), torch.cat(gram) if gram else labels.new_zeros(0), logits, temperature
    )


def fit_weights(
    members: Members, labels: Tensor, num_classes: int, objective: Objective
) -> tuple[Tensor, FitReport]:
    """Find the weights on the simplex by SLSQP, renewing adaptive row weights until they settle."""
    weights, iterations, rounds = START, 0, MAX_ROUNDS if objective.adaptive else 1
    for _ in range(rounds):
        losses, _ = _losses_and_pulls(members, weights, objective)
        counts = objective.row_weights(losses, labels, num_classes)
        found = _slsqp(members, counts, objective, weights)
        iterations += found.nit
        moved, weights = float(np.abs(found.x - weights).max()), _on_simplex(found.x)
        if moved < TOLERANCE:
            break
    settled = not objective.adaptive or moved < TOLERANCE
    fitted = torch.from_numpy(weights).to(labels.device)
    note = "" if found.success and settled else f"weights: {found.message}"
    return fitted, FitReport(bool(found.success and settled), iterations, float(found.fun), note)


def _slsqp(
    members: Members, counts: Tensor, objective: Objective, start: np.ndarray
) -> optimize.OptimizeResult:
    def evaluate(weights: np.ndarray) -> tuple[float, np.ndarray]:
        losses, pulls = _losses_and_pulls(members, weights, objective)
        return float(counts @ losses), (counts @ pulls).cpu().numpy()

    return scipy_minimize(
        evaluate,
        start,
        jac=True,
        method="SLSQP",
        bounds=((0.0, 1.0),) * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(3)},
        options={"ftol": 1e-12, "maxiter": 200},
    )


def _losses_and_pulls(
    members: Members, weights: np.ndarray, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, (N,), and its derivative in the three weights, (N, 3)."""
    w = torch.from_numpy(np.ascontiguousarray(weights)).to(members.label.device)
    chosen = (members.label @ w).clamp(min=TINY)
    in_chosen = members.label / chosen.unsqueeze(1)
    average, in_average = _mean_log(members, w, objective)
    square, in_square = _squares(members, w, objective)
    loss, pulls = row_gradients(
        objective, RowTerms(chosen.log(), average, square, members.logits.shape[1])
    )
    slopes = (in_chosen, in_average, in_square)
    terms = [p.unsqueeze(1) * s for p, s in zip(pulls, slopes, strict=True)]
    return loss, terms[0] + terms[1] + terms[2]


def _mean_log(members: Members, w: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """Return the mean log-probability of the mixture and its derivative in the weights."""
    if not objective.needs_mean:
        return torch.zeros_like(members.label[:, 0]), torch.zeros_like(members.label)
    averages, slopes = [], []
    for part in chunks(members.logits):
        scaled, plain = _softmaxes(members.logits[part].double(), members.temperature)
        classes = scaled.shape[1]
        mixture = torch.add(w[2] / classes, scaled, alpha=float(w[0])).add_(
            plain, alpha=float(w[1])
        )
        averages.append(mixture.clamp_(min=TINY).log().mean(1))
        inverse = mixture.reciprocal_().div_(classes)
        sums = torch.linalg.vecdot(scaled, inverse), torch.linalg.vecdot(plain, inverse)
        slopes.append(torch.stack([*sums, inverse.mean(1)], dim=1))
    return torch.cat(averages), torch.cat(slopes)


def _squares(members: Members, w: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """Return the sum of squared probabilities of the mixture and its derivative."""
    if not objective.needs_square:
        return torch.zeros_like(members.label[:, 0]), torch.zeros_like(members.label)
    matrix = members.gram.new_zeros(len(members.gram), 3, 3)
    for column, (a, b) in enumerate(PAIRS):
        matrix[:, a, b] = matrix[:, b, a] = members.gram[:, column]
    slope = matrix @ w
    return slope @ w, 2 * slope


def _softmaxes(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return scaled and plain probabilities; the third member is 1 / K everywhere."""
    return (logits / temperature).softmax(1), logits.softmax(1)


def _on_simplex(weights: np.ndarray) -> np.ndarray:
    clipped = weights.clip(0.0, 1.0)
    return clipped / clipped.sum()
