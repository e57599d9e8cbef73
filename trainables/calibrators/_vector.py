"""The fit of a slope and a bias per class by penalised likelihood, with Newton's method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators._minimize import TOLERANCE as LBFGS_TOLERANCE
from trainables.calibrators._minimize import lbfgs, residuals_in_place, softmax_in_place
from trainables.calibrators._temperature import fit_temperature
from trainables.common.logit_rows import row_blocks

NEWTON_CLASSES = 200  # With more classes, computing the curvature costs more than it saves.
MAX_STEPS = 100
TOLERANCE, FLAT = 1e-14, 1e-8
SUFFICIENT, ROUNDING = 1e-4, 1e-15
RIDGES = (1e-6, 1e-4, 1e-2)
TINY = 1e-300

Curved = tuple[float, Tensor, Tensor]


@dataclass(frozen=True)
class VectorLoss:
    """The mean of ``-log p_y`` of ``softmax(a * z + b)``, plus a penalty.

    Slopes a and biases b are one tensor, (2 K,), float64; ``weight_decay`` has the weight of half
    the squared distance of each entry from ``origin``.
    """

    logits: Tensor
    labels: Tensor
    origin: Tensor
    weight_decay: Tensor

    def __call__(self, parameters: Sequence[Tensor]) -> tuple[float, Sequence[Tensor]]:
        """Return the value and the gradient at slopes and biases, for ``lbfgs``."""
        (at,) = parameters
        slope, bias = at.chunk(2)
        total, gradient = 0.0, torch.zeros_like(at)
        in_slope, in_bias = gradient.chunk(2)
        for part in row_blocks(self.logits):
            z = self.logits[part].double()
            residuals, losses = residuals_in_place(z * slope + bias, self.labels[part])
            total += float(losses.sum())
            in_bias += residuals.sum(0)
            in_slope += residuals.mul_(z).sum(0)
        value, gradient = self._penalized(total, gradient, at)
        return value, [gradient]

    def with_curvature(self, at: Tensor) -> Curved:
        """Return value, gradient and curvature, (2 K, 2 K), at slopes and biases."""
        slope, bias = at.chunk(2)
        classes = len(slope)
        total, gradient = 0.0, torch.zeros_like(at)
        curvature = at.new_zeros(len(at), len(at))
        for part in row_blocks(self.logits):
            z, labels = self.logits[part].double(), self.labels[part]
            probabilities, losses = softmax_in_place(z * slope + bias, labels)
            total += float(losses.sum())
            weighted = torch.cat([probabilities * z, probabilities], 1)
            # Single precision is accurate enough for the curvature: no more steps are needed.
            single = weighted.float()
            curvature -= single.T @ single
            gradient += weighted.sum(0)
            squares = (weighted[:, :classes] * z).sum(0)
            curvature.diagonal().add_(torch.cat([squares, probabilities.sum(0)]))
            mixed = weighted[:, :classes].sum(0)
            curvature.diagonal(classes).add_(mixed)
            curvature.diagonal(-classes).add_(mixed)
            own = z.gather(1, labels.unsqueeze(1)).squeeze(1)
            gradient.index_add_(0, labels, -own)
            gradient.index_add_(0, labels + classes, -torch.ones_like(own))
        curvature /= len(self.labels)
        curvature.diagonal().add_(self.weight_decay)
        return *self._penalized(total, gradient, at), curvature

    def _penalized(self, total: float, gradient: Tensor, at: Tensor) -> tuple[float, Tensor]:
        away, rows = at - self.origin, len(self.labels)
        pulled = self.weight_decay * away
        return total / rows + 0.5 * float(pulled @ away), gradient / rows + pulled


class VectorFit:
    """The negative log-likelihood of slopes and biases with a penalty; see ``PulledFit``.

    T is the best temperature of the rows. The penalty is half of ``weight_decay`` times the sum of
    the squared biases and the squared differences of the slopes from 1 / T. The pull acts on the
    biases and on T times these differences, so that it does not depend on the scale of the logits.
    """

    def __init__(self, logits: Tensor, labels: Tensor, weight_decay: float) -> None:
        self._logits, self._labels, self._weight_decay = logits, labels, weight_decay
        self._temperature, _ = fit_temperature(logits, labels)
        slopes = self._temperature.reciprocal().expand(logits.shape[1])
        self.scaled = torch.cat([slopes, torch.zeros_like(slopes)])

    def minimize(
        self, pull: float = 0.0, start: Tensor | None = None, tolerance: float = TOLERANCE
    ) -> tuple[Tensor, FitReport]:
        """Return slopes and biases, (2 K,), float64, and the report; see ``PulledFit``."""
        decay = torch.full_like(self.scaled, self._weight_decay + pull)
        slopes = decay.chunk(2)[0]
        slopes += pull * (self._temperature.square() - 1)
        loss = VectorLoss(self._logits, self._labels, self.scaled, decay)
        origin = self.scaled if start is None else start
        if self._logits.shape[1] <= NEWTON_CLASSES:
            return newton(loss.with_curvature, origin, tolerance)
        (found,), report = lbfgs(loss, [origin], tolerance=max(tolerance, LBFGS_TOLERANCE))
        return found, report

    def loss(self, weights: Tensor) -> float:
        """Return the sum of ``-log p_y`` over the rows at slopes and biases, (2 K,)."""
        slope, bias = weights.chunk(2)
        total = 0.0
        for part in row_blocks(self._logits):
            mapped = self._logits[part].double() * slope + bias
            total += float(softmax_in_place(mapped, self._labels[part])[1].sum())
        return total


def newton(
    evaluate: Callable[[Tensor], Curved], start: Tensor, tolerance: float = TOLERANCE
) -> tuple[Tensor, FitReport]:
    """Minimise a convex function by Newton steps, each halved until it gains enough.

    ``evaluate`` returns value, gradient (D,) and curvature (D, D) at a point (D,). The search stops
    if the expected gain is at most ``tolerance`` times the value, or the gradient almost vanishes.
    """
    at, length = start, 1.0
    here = evaluate(at)
    for steps in range(1, MAX_STEPS + 1):
        value, gradient, curvature = here
        step = _newton_step(gradient, curvature)
        gain = -0.5 * float(step @ gradient)
        if float(gradient.abs().amax()) <= FLAT or gain <= tolerance * abs(value):
            return at + step, FitReport(True, steps, value)
        there = evaluate(at + length * step)
        if there[0] <= value - SUFFICIENT * length * gain + ROUNDING * abs(value):
            at, here, length = at + length * step, there, 1.0
        else:
            length *= 0.5
    note = f"still gaining after {MAX_STEPS} Newton steps"
    return at, FitReport(False, MAX_STEPS, here[0], note)


def _newton_step(gradient: Tensor, curvature: Tensor) -> Tensor:
    """Return the Newton step, (D,).

    The curvature is scaled to a unit diagonal and gets the smallest ridge that makes it regular:
    without a penalty it is singular, because adding a constant to all biases has no effect.
    """
    scale = curvature.diagonal().clamp(min=TINY).rsqrt()
    scaled = curvature * scale * scale.unsqueeze(1)
    eye = torch.eye(len(scaled), dtype=scaled.dtype, device=scaled.device)
    for ridge in RIDGES:
        factor, failed = torch.linalg.cholesky_ex(scaled + ridge * eye)
        if not int(failed):
            break
    return -scale * torch.cholesky_solve((gradient * scale).unsqueeze(1), factor).squeeze(1)
