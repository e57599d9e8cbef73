"""Optimiser runs as in the released code of the class-wise loss scaling paper and of SMART.

They use float32 and the step sizes of that code, so they may not reach the optimum. Use them for
comparisons with published results.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators._minimize import MappedLoss, Transform
from trainables.calibrators._temperature import divide
from trainables.calibrators.objectives import Objective

CONSTANT = ((0.02, 1000),)
SCHEDULE = ((0.005, 200), (0.003, 400), (0.001, 400))
ADAPT_AT = 1
BETAS = 0.9, 0.999  # Parameters of Adam.


class ReleasedRun:
    """One fit with torch optimisers, which fixes the scaling of ``cls`` at the second evaluation.

    Args:
        parameters: The float32 tensors to fit in place; for the other arguments see
            ``MappedLoss``.
    """

    def __init__(
        self,
        transform: Transform,
        parameters: Sequence[Tensor],
        logits: Tensor,
        labels: Tensor,
        objective: Objective,
    ) -> None:
        self._loss = MappedLoss(transform, logits, labels, objective)
        self._parameters = [p.requires_grad_() for p in parameters]
        self._evaluations, self._value = 0, 0.0

    def lbfgs(self) -> FitReport:
        """Run LBFGS without line search, at most 1000 iterations in all."""
        for rate, iterations in self._plan():
            optimizer = torch.optim.LBFGS(self._parameters, lr=rate, max_iter=iterations)
            optimizer.step(self._closure)
        return self._report()

    def adam(self) -> FitReport:
        """Run 1000 full-batch steps of Adam."""
        for rate, iterations in self._plan():
            optimizer = torch.optim.Adam(self._parameters, lr=rate)
            for _ in range(iterations):
                self._closure()
                optimizer.step()
        return self._report()

    def _plan(self) -> Sequence[tuple[float, int]]:
        return SCHEDULE if self._loss.objective.scheduled else CONSTANT

    def _closure(self) -> float:
        losses = torch.zeros(len(self._loss.labels), device=self._loss.labels.device)
        if self._loss.objective.adaptive:
            losses = self._loss.row_losses(self._parameters)
            rows = losses, self._loss.labels, self._loss.logits.shape[1]
            if self._evaluations == 0:
                self._loss.objective.begin(*rows)
            elif self._evaluations == ADAPT_AT:
                self._loss.objective.freeze(*rows)
        weights = self._loss.row_weights(losses)
        self._value, gradients = self._loss.evaluate(self._parameters, weights)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._evaluations += 1
        return self._value

    def _report(self) -> FitReport:
        return FitReport(True, self._evaluations, self._value, "fixed-length run as released")


def released_temperatures(
    count: int, logits: Tensor, labels: Tensor, objective: Objective
) -> tuple[Tensor, FitReport]:
    """Return ``count`` temperatures (one, or one per class), float64, and the report."""
    fitted = torch.ones(count, device=logits.device)
    report = ReleasedRun(divide, [fitted], logits, labels, objective).lbfgs()
    return fitted.detach().double(), report


def adam(
    loss: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    rate: float,
    steps: int,
    patience: int,
    least: float,
) -> FitReport:
    """Take up to ``steps`` full-batch steps of Adam.

    The run ends earlier if the loss has not fallen by more than ``least`` for ``patience`` steps.
    The result is the last parameters, not the best ones, as in released code, whose copy of the
    best ones is only a reference to the present ones; the report has the lowest loss. The steps
    equal those of ``torch.optim.Adam``, which takes seconds to import.
    """
    means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    best, last_gain, step = math.inf, 0, 0
    for step in range(1, steps + 1):
        with torch.enable_grad():
            value = loss()
        gradients = torch.autograd.grad(value, parameters)
        for p, slope, mean, square in zip(parameters, gradients, means, squares, strict=True):
            mean.lerp_(slope, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(slope, slope, value=1 - BETAS[1])
            deviation = (square / (1 - BETAS[1] ** step)).sqrt_().add_(1e-8)
            p.detach().addcdiv_(mean, deviation, value=-rate / (1 - BETAS[0] ** step))
        if float(value) < best - least:
            best, last_gain = float(value), step
        if step - last_gain >= patience:
            break
    return FitReport(True, step, best)
