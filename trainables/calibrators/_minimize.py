"""Limited-memory BFGS on a few tensors in float64, with a loss summed over chunks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from trainables.calibrators._base import FitReport, chunks
from trainables.calibrators._scipy import scipy_minimize
from trainables.calibrators.objectives import Objective, RowTerms

MAX_ITERATIONS = 500
TOLERANCE = 1e-12
CORRECTIONS = 20
MAX_ROUNDS = 100
ROUND_ITERATIONS = 25
ROUND_TOLERANCE = 1e-4
BOLDEST = 0.5
SETTLING, CAUTION = 0.8, 0.8
FIRST_STEP = 0.02

Transform = Callable[[Sequence[Tensor], Tensor], Tensor]
Penalty = Callable[[Sequence[Tensor]], Tensor]
Evaluate = Callable[[Sequence[Tensor]], tuple[float, Sequence[Tensor]]]


def row_terms(log_probs: Tensor, labels: Tensor, objective: Objective) -> RowTerms:
    """Return what an objective may know of calibrated rows (N, K)."""
    nothing = log_probs.new_zeros(len(labels))
    return RowTerms(
        log_probs.gather(1, labels.unsqueeze(1)).squeeze(1),
        log_probs.mean(1) if objective.needs_mean else nothing,
        log_probs.exp().square().sum(1) if objective.needs_square else nothing,
        log_probs.shape[1],
    )


def row_losses(
    transform: Transform,
    parameters: Sequence[Tensor],
    logits: Tensor,
    labels: Tensor,
    objective: Objective,
) -> Tensor:
    """Return the loss of each row, (N,), without gradient."""
    dtype = parameters[0].dtype
    out = torch.empty(len(labels), dtype=dtype, device=labels.device)
    for part in chunks(logits):
        log_probs = transform(parameters, logits[part].to(dtype))
        out[part] = objective.per_row(row_terms(log_probs, labels[part], objective))
    return out


def value_and_gradients(
    transform: Transform,
    parameters: Sequence[Tensor],
    logits: Tensor,
    labels: Tensor,
    objective: Objective,
    weights: Tensor,
) -> tuple[float, list[Tensor]]:
    """Return the weighted sum of the row losses and its gradient in every parameter."""
    leaves = [p.detach().requires_grad_() for p in parameters]
    total = 0.0
    gradients = [torch.zeros_like(p) for p in leaves]
    for part in chunks(logits):
        with torch.enable_grad():
            log_probs = transform(leaves, logits[part].to(leaves[0].dtype))
            loss = objective.per_row(row_terms(log_probs, labels[part], objective))
            value = (weights[part].to(loss.dtype) * loss).sum()
            parts = torch.autograd.grad(value, leaves)
        total += float(value.detach())
        gradients = [g + p for g, p in zip(gradients, parts, strict=True)]
    return total, gradients


def first_step(gradient: Tensor) -> Tensor:
    """Return the step that the released LBFGS takes first, to be subtracted.

    It is 0.02 times the gradient, or 0.02 in the sum of absolute changes where the gradient's
    absolute sum exceeds 1.
    """
    return FIRST_STEP * min(1.0, 1.0 / max(float(gradient.abs().sum()), 1e-300)) * gradient


def prepare_objective(
    transform: Transform, start: Tensor, logits: Tensor, labels: Tensor, objective: Objective
) -> None:
    """Let an adaptive objective see the losses before and after the released first step."""
    if not objective.adaptive:
        return
    num_classes = logits.shape[1]
    losses = row_losses(transform, [start], logits, labels, objective)
    objective.begin(losses, labels, num_classes)
    weights = objective.row_weights(losses, labels, num_classes)
    _, slopes = value_and_gradients(transform, [start], logits, labels, objective, weights)
    stepped = start - first_step(slopes[0])
    objective.freeze(
        row_losses(transform, [stepped], logits, labels, objective), labels, num_classes
    )


def lbfgs(
    evaluate: Evaluate,
    start: Sequence[Tensor],
    max_iterations: int = MAX_ITERATIONS,
    tolerance: float = TOLERANCE,
    corrections: int = CORRECTIONS,
) -> tuple[list[Tensor], FitReport]:
    """Minimise a smooth function of tensors with SciPy's L-BFGS-B, in float64.

    Args:
        evaluate: Returns value and gradients at given tensors.
        start: Where to begin; shapes and device are kept.
        max_iterations: Iterations after which the fit counts as not converged.
        tolerance: Relative gain of an iteration below which it stops.
        corrections: Earlier steps that shape the next; each takes as much memory as four copies of
            the tensors.
    """

    def flat(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradients = evaluate(_unpack(x, start))
        return value, _pack(gradients)

    options = {"maxiter": max_iterations, "maxcor": corrections, "ftol": tolerance, "gtol": 1e-8}
    found = scipy_minimize(flat, _pack(start), jac=True, method="L-BFGS-B", options=options)
    note = "" if found.success else str(found.message)
    return _unpack(found.x, start), FitReport(
        bool(found.success), int(found.nit), float(found.fun), note
    )


def minimize_objective(
    transform: Transform,
    start: Sequence[Tensor],
    logits: Tensor,
    labels: Tensor,
    objective: Objective,
    penalty: Penalty | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[list[Tensor], FitReport]:
    """Fit parameters of a map from logits to log-probabilities.

    Args:
        transform: The map, from parameters and a chunk of logits to log-probabilities.
        start: Where to begin, float64.
        logits: (N, K).
        labels: (N,), int64.
        objective: What is minimised; an adaptive one must have been prepared.
        penalty: Added to the objective, a function of the parameters alone.
        tolerance: As in ``lbfgs``.
    """

    def with_weights(weights: Tensor) -> Evaluate:
        def evaluate(parameters: Sequence[Tensor]) -> tuple[float, Sequence[Tensor]]:
            value, slopes = value_and_gradients(
                transform, parameters, logits, labels, objective, weights
            )
            return add_penalty(penalty, parameters, value, slopes)

        return evaluate

    def losses(parameters: Sequence[Tensor]) -> Tensor:
        return row_losses(transform, parameters, logits, labels, objective)

    return in_rounds(
        with_weights, losses, start, labels, logits.shape[1], objective, tolerance=tolerance
    )


def in_rounds(
    with_weights: Callable[[Tensor], Evaluate],
    losses: Callable[[Sequence[Tensor]], Tensor],
    start: Sequence[Tensor],
    labels: Tensor,
    num_classes: int,
    objective: Objective,
    max_iterations: int = MAX_ITERATIONS,
    tolerance: float = TOLERANCE,
) -> tuple[list[Tensor], FitReport]:
    """Minimise with fixed row weights, renew the weights, and repeat until they stay.

    An objective that is not adaptive needs a single round. Otherwise new weights are averaged with
    the old ones, the more cautiously the longer they fail to settle: weight and loss of a class
    push each other back and forth when the new ones are simply taken over.
    """
    if not objective.adaptive:
        even = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
        weights = objective.row_weights(even, labels, num_classes)
        return lbfgs(with_weights(weights), start, max_iterations, tolerance)
    parameters, iterations, share, before = list(start), 0, BOLDEST, math.inf
    weights = objective.row_weights(losses(parameters), labels, num_classes)
    for _ in range(MAX_ROUNDS):
        found, report = lbfgs(with_weights(weights), parameters, ROUND_ITERATIONS, tolerance)
        iterations += report.iterations
        moved = max(float((a - b).abs().max()) for a, b in zip(found, parameters, strict=True))
        parameters = found
        if moved < ROUND_TOLERANCE:
            return parameters, FitReport(True, iterations, report.objective)
        share, before = (share if moved < SETTLING * before else CAUTION * share), moved
        renewed = objective.row_weights(losses(parameters), labels, num_classes)
        weights = (1 - share) * weights + share * renewed
    note = f"parameters still move by {moved:.1e} after {MAX_ROUNDS} rounds"
    return parameters, FitReport(False, iterations, report.objective, note)


def add_penalty(
    penalty: Penalty | None, parameters: Sequence[Tensor], value: float, slopes: Sequence[Tensor]
) -> tuple[float, Sequence[Tensor]]:
    """Add value and gradients of a penalty on the parameters."""
    if penalty is None:
        return value, slopes
    with torch.enable_grad():
        leaves = [p.detach().requires_grad_() for p in parameters]
        extra = penalty(leaves)
        pulls = torch.autograd.grad(extra, leaves, allow_unused=True)
    summed = [s if p is None else s + p for s, p in zip(slopes, pulls, strict=True)]
    return value + float(extra), summed


def _pack(tensors: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([t.reshape(-1) for t in tensors]).double().cpu().numpy()


def _unpack(x: np.ndarray, like: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.from_numpy(np.array(x)).split([t.numel() for t in like])
    return [p.reshape(t.shape).to(t.device) for p, t in zip(parts, like, strict=True)]
