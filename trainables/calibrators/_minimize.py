"""Passes over the fitting rows, and limited-memory BFGS for losses that are sums over rows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy
import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators.objectives import Objective, RowTerms
from trainables.common.logit_rows import find_masked, mean_allowed, row_blocks

KEPT_VALUES = 1 << 25  # Up to 256 MiB of rows are cached in the form that passes need.


@dataclass(frozen=True)
class RowPass:
    """The result of one pass at given temperatures; all tensors are (N,), float64.

    Attributes:
        loss: The objective's loss of each row.
        slope: Derivative of the loss with respect to the logarithm of the row's temperature.
        curvature: A non-negative estimate of the second derivative (exact for ``ce`` and ``ls`` up
            to a term that vanishes with the slope).
    """

    loss: Tensor
    slope: Tensor
    curvature: Tensor


class TemperaturePasses:
    """Evaluates an objective for rows that are divided by given temperatures."""

    def __init__(self, logits: Tensor, labels: Tensor, objective: Objective) -> None:
        self.logits, self.labels, self.objective = logits, labels, objective
        self._masked = find_masked(logits) if objective.needs_mean else None
        # Casting and transposing rows takes as long as summing over their classes, so cache it.
        self._kept = list(self._blocks()) if logits.numel() <= KEPT_VALUES else None

    def __call__(self, log_temperature: Tensor) -> RowPass:
        """Evaluate all rows at logarithms of the temperature, (N,) or (1,), float64."""
        s = (-log_temperature).exp().expand(len(self.labels))
        chosen, average, powers = self._sums(s)
        total, first, second, *squares = powers
        mean, log_total = first / total, total.log()
        spread = (second / total - mean.square()).clamp_(min=0)
        square = squares[0] / total.square() if squares else s.new_zeros(()).expand_as(s)
        terms = RowTerms(
            s * chosen - log_total, s * average - log_total, square, self.logits.shape[1]
        )
        loss, (to_label, to_mean, to_square) = row_gradients(self.objective, terms)
        to_both = to_label + to_mean
        in_s = to_label * chosen + to_mean * average - to_both * mean
        if squares:
            in_s += 2 * to_square * (squares[1] / total.square() - square * mean)
        return RowPass(loss, -s * in_s, (s.square() * -to_both * spread).clamp_(min=0))

    def _sums(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum over the classes of each row, after moving its largest logit to 0.

        Args:
            s: Inverse temperatures, (N,).

        Returns:
            The logit of the label, (N,); the mean logit, (N,), zeros unless the objective needs it;
            and, with ``w = exp(s z)``, the sums of w, w z and w z^2 and, if the objective needs
            squared probabilities, of w^2 and w^2 z, (3 or 5, N).
        """
        chosen, average = torch.zeros_like(s), torch.zeros_like(s)
        powers = s.new_empty(5 if self.objective.needs_square else 3, len(s))
        for part, z in self._blocks() if self._kept is None else self._kept:
            chosen[part] = z.gather(0, self.labels[part].unsqueeze(0)).squeeze(0)
            if self.objective.needs_mean:
                masked = None if self._masked is None else self._masked[part].T
                average[part] = mean_allowed(z, masked, dim=0)
            weights = (z * s[part]).exp_()
            if self.objective.needs_square:
                _sum_powers(powers[3:, part], weights.square(), z)
            _sum_powers(powers[:3, part], weights, z)
        return chosen, average, powers

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of rows and their logits, float64, (K, n), the largest of each row at 0."""
        for part in row_blocks(self.logits):
            block = self.logits[part].T
            # Classes first, so that sums over few classes are fast.
            z = torch.empty(block.shape, dtype=torch.float64, device=block.device).copy_(block)
            yield part, z.sub_(z.amax(0))


def _sum_powers(out: Tensor, weights: Tensor, z: Tensor) -> None:
    """Write the sums of w, w z, w z^2 ... over the classes to ``out``; changes w in place."""
    for power, values in enumerate(out):
        torch.sum(weights if power == 0 else weights.mul_(z), 0, out=values)


def softmax_in_place(mapped: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Change mapped logits (N, K) to probabilities in place; also return ``-log p_y``, (N,)."""
    mapped -= mapped.amax(1, keepdim=True)
    chosen = mapped.gather(1, labels.unsqueeze(1)).squeeze(1)
    total = mapped.exp_().sum(1)
    return mapped.div_(total.unsqueeze(1)), total.log() - chosen


def residuals_in_place(mapped: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Change mapped logits (N, K) to gradients of the loss ``-log p_y`` in place; return both."""
    probabilities, losses = softmax_in_place(mapped, labels)
    ones = torch.ones_like(mapped[:, :1])
    return probabilities.scatter_add_(1, labels.unsqueeze(1), -ones), losses


def row_gradients(objective: Objective, terms: RowTerms) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return each row's loss and its derivatives by ``log_p``, ``mean_log_p`` and ``sum_p2``."""
    with torch.enable_grad():
        log_p, mean_log_p, sum_p2 = leaves = [
            term.detach().requires_grad_() for term in (terms.log_p, terms.mean_log_p, terms.sum_p2)
        ]
        loss = objective.per_row(RowTerms(log_p, mean_log_p, sum_p2, terms.num_classes))
        pulls = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
    filled = (
        leaf.new_zeros(()).expand_as(leaf) if pull is None else pull
        for leaf, pull in zip(leaves, pulls, strict=True)
    )
    return loss.detach(), tuple(filled)


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
Evaluate = Callable[[Sequence[Tensor]], tuple[float, Sequence[Tensor]]]


class WeightedLoss(ABC):
    """A weighted sum of row losses as a function of a few tensors.

    Logits are (N, K), labels (N,), int64; the objective defines the losses and weights of rows.
    """

    def __init__(self, logits: Tensor, labels: Tensor, objective: Objective) -> None:
        self.logits, self.labels, self.objective = logits, labels, objective

    @abstractmethod
    def row_losses(self, parameters: Sequence[Tensor]) -> Tensor:
        """Return the loss of each row, (N,), without gradient."""

    @abstractmethod
    def evaluate(
        self, parameters: Sequence[Tensor], weights: Tensor
    ) -> tuple[float, Sequence[Tensor]]:
        """Return the sum of row losses times ``weights`` (N,), and its gradient by each tensor."""

    def row_weights(self, losses: Tensor) -> Tensor:
        """Return the weight of each row, (N,), given the rows' losses."""
        return self.objective.row_weights(losses, self.labels, self.logits.shape[1])

    def prepare(self, start: Tensor, after_step: Callable[[Tensor], Tensor]) -> None:
        """Give an adaptive objective the losses before and after a first step.

        It is the first LBFGS step of the class-wise scaling code: 0.02 times the gradient, after
        scaling the gradient to an absolute sum of at most 1.

        Args:
            start: The only parameter of the loss, at its initial value.
            after_step: Converts the temperatures after the step (1 minus the step) to this
                parameter.
        """
        if not self.objective.adaptive:
            return
        classes = self.logits.shape[1]
        losses = self.row_losses([start])
        self.objective.begin(losses, self.labels, classes)
        _, (slope,) = self.evaluate([start], self.row_weights(losses))
        step = FIRST_STEP * min(1.0, 1.0 / max(float(slope.abs().sum()), 1e-300)) * slope
        self.objective.freeze(self.row_losses([after_step(1 - step)]), self.labels, classes)


class MappedLoss(WeightedLoss):
    """The loss of rows after a map, differentiated block by block.

    Args:
        transform: The map from parameters and a block of logits to log-probabilities; for the
            other arguments see ``WeightedLoss``.
    """

    def __init__(
        self, transform: Transform, logits: Tensor, labels: Tensor, objective: Objective
    ) -> None:
        super().__init__(logits, labels, objective)
        self._transform = transform
        self._masked = find_masked(logits) if objective.needs_mean else None

    def row_losses(self, parameters: Sequence[Tensor]) -> Tensor:
        out = parameters[0].new_empty(len(self.labels))
        with torch.no_grad():
            for part in row_blocks(self.logits):
                out[part] = self._losses(parameters, part)
        return out

    def evaluate(
        self, parameters: Sequence[Tensor], weights: Tensor
    ) -> tuple[float, Sequence[Tensor]]:
        leaves, total = [p.detach().requires_grad_() for p in parameters], 0.0
        gradients = [torch.zeros_like(p) for p in leaves]
        for part in row_blocks(self.logits):
            with torch.enable_grad():
                loss = self._losses(leaves, part)
                value = (weights[part].to(loss.dtype) * loss).sum()
                parts = torch.autograd.grad(value, leaves)
            total += float(value.detach())
            gradients = [g + p for g, p in zip(gradients, parts, strict=True)]
        return total, gradients

    def _losses(self, parameters: Sequence[Tensor], part: slice) -> Tensor:
        log_probs = self._transform(parameters, self.logits[part].to(parameters[0].dtype))
        masked = None if self._masked is None else self._masked[part]
        terms = row_terms(log_probs, self.labels[part], self.objective, masked)
        return self.objective.per_row(terms)


def row_terms(
    log_probs: Tensor, labels: Tensor, objective: Objective, masked: Tensor | None = None
) -> RowTerms:
    """Return the terms of calibrated rows (N, K); those that an objective does not need are 0."""
    nothing = log_probs.new_zeros(len(labels))
    return RowTerms(
        log_probs.gather(1, labels.unsqueeze(1)).squeeze(1),
        mean_allowed(log_probs, masked) if objective.needs_mean else nothing,
        log_probs.exp().square().sum(1) if objective.needs_square else nothing,
        log_probs.shape[1],
    )


def minimize(
    loss: WeightedLoss,
    start: Sequence[Tensor],
    max_iterations: int = MAX_ITERATIONS,
    tolerance: float = TOLERANCE,
) -> tuple[list[Tensor], FitReport]:
    """Minimise with fixed row weights, update the weights, and repeat until parameters settle.

    An objective that is not adaptive needs a single run of ``lbfgs``. An adaptive objective must
    have been prepared (``WeightedLoss.prepare``). Its new weights are averaged with the old ones,
    because weight and loss of a class could otherwise oscillate. The share of the new weights
    shrinks after each round that moves the parameters almost as far as, or farther than, the round
    before. After 100 rounds, the fit ends without convergence.
    """
    if not loss.objective.adaptive:
        even = torch.zeros(len(loss.labels), dtype=torch.float64, device=loss.labels.device)
        weights = loss.row_weights(even)
        return lbfgs(partial(loss.evaluate, weights=weights), start, max_iterations, tolerance)
    parameters, iterations, share, before = list(start), 0, BOLDEST, math.inf
    weights = loss.row_weights(loss.row_losses(parameters))
    for _ in range(MAX_ROUNDS):
        evaluate = partial(loss.evaluate, weights=weights)
        found, report = lbfgs(evaluate, parameters, ROUND_ITERATIONS, tolerance)
        iterations += report.iterations
        moved = max(float((a - b).abs().max()) for a, b in zip(found, parameters, strict=True))
        parameters = found
        if moved < ROUND_TOLERANCE:
            return parameters, FitReport(True, iterations, report.objective)
        share, before = (share if moved < SETTLING * before else CAUTION * share), moved
        renewed = loss.row_weights(loss.row_losses(parameters))
        weights = (1 - share) * weights + share * renewed
    note = f"parameters still move by {moved:.1e} after {MAX_ROUNDS} rounds"
    return parameters, FitReport(False, iterations, report.objective, note)


def lbfgs(
    evaluate: Evaluate,
    start: Sequence[Tensor],
    max_iterations: int = MAX_ITERATIONS,
    tolerance: float = TOLERANCE,
    corrections: int = CORRECTIONS,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
) -> tuple[list[Tensor], FitReport]:
    """Minimise a smooth function of tensors with SciPy's L-BFGS-B, in float64.

    Args:
        evaluate: Returns value and gradients at given tensors.
        start: The initial tensors; results have the same shapes and device.
        max_iterations: Number of iterations after which the fit counts as not converged.
        tolerance: The fit stops if an iteration's relative gain is smaller.
        corrections: Number of earlier steps in memory; each takes four copies of the tensors.
        bounds: The smallest and largest value of each entry of the tensors; None for no bound.
    """

    def flat(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradients = evaluate(_unpack(x, start))
        return value, _pack(gradients)

    options = {"maxiter": max_iterations, "maxcor": corrections, "ftol": tolerance, "gtol": 1e-8}
    found = scipy.optimize.minimize(  # type: ignore[call-overload]
        flat, _pack(start), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    note = "" if found.success else str(found.message)
    report = FitReport(bool(found.success), int(found.nit), float(found.fun), note)
    return _unpack(found.x, start), report


def _pack(tensors: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([t.reshape(-1) for t in tensors]).double().cpu().numpy()


def _unpack(x: np.ndarray, like: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.from_numpy(np.array(x)).split([t.numel() for t in like])
    return [p.reshape(t.shape).to(t.device) for p, t in zip(parts, like, strict=True)]
