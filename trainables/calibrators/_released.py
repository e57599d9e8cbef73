"""The fixed-length optimiser runs that the class-wise loss scaling paper's code releases.

They work in float32, start at 1 and take the step sizes that the paper states (sec. 5.3), so they
may end short of the optimum; they exist to compare with published figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators._minimize import Transform, row_losses, value_and_gradients
from trainables.calibrators.objectives import Objective

CONSTANT = ((0.02, 1000),)
SCHEDULE = ((0.005, 200), (0.003, 400), (0.001, 400))
ADAPT_AT = 1


class ReleasedRun:
    """One fit with torch optimisers; counts evaluations, because ``cls`` adapts at the second.

    Args:
        transform: From parameters and a chunk of logits to log-probabilities.
        parameters: The float32 tensors that are fitted, in place.
        logits: (N, K).
        labels: (N,), int64.
        objective: What is minimised.
    """

    def __init__(
        self,
        transform: Transform,
        parameters: Sequence[Tensor],
        logits: Tensor,
        labels: Tensor,
        objective: Objective,
    ) -> None:
        self._transform, self._logits, self._labels = transform, logits, labels
        self._objective = objective
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
        return SCHEDULE if self._objective.scheduled else CONSTANT

    def _closure(self) -> float:
        rows = self._transform, self._parameters, self._logits, self._labels, self._objective
        losses = torch.zeros(len(self._labels), device=self._labels.device)
        if self._objective.adaptive:
            losses = row_losses(*rows).detach()
            self._adapt(losses)
        weights = self._objective.row_weights(losses, self._labels, self._logits.shape[1])
        self._value, gradients = value_and_gradients(*rows, weights)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._evaluations += 1
        return self._value

    def _adapt(self, losses: Tensor) -> None:
        if self._evaluations == 0:
            self._objective.begin(losses, self._labels, self._logits.shape[1])
        elif self._evaluations == ADAPT_AT:
            self._objective.freeze(losses, self._labels, self._logits.shape[1])

    def _report(self) -> FitReport:
        return FitReport(True, self._evaluations, self._value, "fixed-length run as released")
