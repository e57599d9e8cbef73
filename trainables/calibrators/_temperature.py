"""The family of calibrators that divide each row by a temperature, and the fit of temperatures."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import FitReport, ObjectiveCalibrator
from trainables.calibrators._minimize import RowPass, TemperaturePasses, WeightedLoss, minimize
from trainables.calibrators.objectives import Objective, build_objective

TEMPERATURE_LOW, TEMPERATURE_HIGH = 0.01, 100.0
LOW, HIGH = math.log(TEMPERATURE_LOW), math.log(TEMPERATURE_HIGH)
LONGEST_STEP = 1.5
TOLERANCE = 1e-10
PERFECT = 1e-5
PERFECT_NOTE = f"loss below {PERFECT:g}: the rows do not determine the temperature"
MAX_PASSES = 100


class TemperatureCalibrator(ObjectiveCalibrator):
    """A calibrator that divides every row by one positive temperature, which keeps its order.

    A subclass may have variants that do otherwise and change ``preserves_accuracy``.
    """

    preserves_accuracy = True

    @abstractmethod
    def _temperatures(self, logits: Tensor) -> Tensor:
        """Return the temperature of each row, (N,) or (1,), float64."""

    def _transform(self, logits: Tensor) -> Tensor:
        return divide([self._temperatures(logits).unsqueeze(1)], logits)


def divide(temperatures: Sequence[Tensor], logits: Tensor) -> Tensor:
    """Return the log-probabilities of logits divided by the single tensor in ``temperatures``."""
    return F.log_softmax(logits / temperatures[0], dim=1)


class Slopes(NamedTuple):
    """A loss, and its slope and curvature with respect to each group's log temperature, (G,)."""

    value: float
    slope: Tensor
    curvature: Tensor


class TemperatureFit(WeightedLoss):
    """One temperature per group of rows, fitted by safeguarded Newton steps on its logarithm.

    Args:
        passes: The rows and the objective; the fit also sets the scaling of an adaptive objective.
        groups: Group of each row, (N,), in [0, G); by default one group.
        num_groups: G.
        prior_log: Initial log temperature, towards which groups are shrunk.
        shrinkage: Weight s of the penalty ``s / 2 * (log T - prior_log)^2`` of each group, which
            is added to the summed loss of the rows.
    """

    def __init__(
        self,
        passes: TemperaturePasses,
        groups: Tensor | None = None,
        num_groups: int = 1,
        prior_log: float = 0.0,
        shrinkage: float = 0.0,
    ) -> None:
        super().__init__(passes.logits, passes.labels, passes.objective)
        self._passes, self._groups, self._prior_log = passes, groups, prior_log
        self._pull = shrinkage / len(self.labels)
        self._zeros = torch.zeros(num_groups, dtype=torch.float64, device=self.labels.device)

    def solve(self) -> tuple[Tensor, FitReport]:
        """Return the temperatures (G,), float64, in [0.01, 100], and the report.

        Groups without rows, or whose rows do not depend on the temperature, get the prior
        temperature.
        """
        # Without shrinkage, because the first step of the released code has none.
        free = TemperatureFit(self._passes, self._groups, len(self._zeros))
        free.prepare(self._zeros, torch.log)
        coupled = self.objective.adaptive and len(self._zeros) > 1
        start = self._zeros + self._prior_log
        theta, report = find_roots(self._slopes, start, coupled=coupled)
        if coupled and not report.converged:
            # Temperatures and row weights oscillate, so average the weights.
            (found,), report = minimize(self, [theta])
            theta = found.clamp(LOW, HIGH)
        return theta.exp(), report

    def row_losses(self, parameters: Sequence[Tensor]) -> Tensor:
        """Return the loss of each row, (N,), at log temperatures (G,)."""
        return self._pass(parameters[0]).loss

    def evaluate(
        self, parameters: Sequence[Tensor], weights: Tensor
    ) -> tuple[float, Sequence[Tensor]]:
        """Return the penalised sum of weighted losses, and its gradient by the log temperatures."""
        found = self._slopes(parameters[0], weights)
        return found.value, [found.slope]

    def _slopes(self, theta: Tensor, weights: Tensor | None = None) -> Slopes:
        rows = self._pass(theta)
        counts = self.row_weights(rows.loss) if weights is None else weights
        away = theta - self._prior_log
        return Slopes(
            float((counts * rows.loss).sum() + 0.5 * (self._pull * away.square()).sum()),
            self._by_group(counts * rows.slope) + self._pull * away,
            self._by_group(counts * rows.curvature) + self._pull,
        )

    def _pass(self, theta: Tensor) -> RowPass:
        return self._passes(theta if self._groups is None else theta[self._groups])

    def _by_group(self, values: Tensor) -> Tensor:
        """Return the sums of values (N,) over the rows of each group, (G,)."""
        if self._groups is None:
            return values.sum(0, keepdim=True)
        return torch.zeros_like(self._zeros).scatter_add_(0, self._groups, values)


def fit_temperature(
    logits: Tensor, labels: Tensor, objective: Objective | None = None
) -> tuple[Tensor, FitReport]:
    """Return the best single temperature (1,) of all rows (N, K), and the report.

    Labels are (N,), int64; the default objective is cross-entropy.
    """
    passes = TemperaturePasses(logits, labels, objective or build_objective("ce"))
    return TemperatureFit(passes).solve()


def find_roots(
    evaluate: Callable[[Tensor], Slopes], start: Tensor, *, coupled: bool
) -> tuple[Tensor, FitReport]:
    """Return the log temperatures (G,) where all slopes vanish, or LOW or HIGH, and the report.

    The search stops earlier when the loss is below ``PERFECT``: if all rows are right, the best
    temperature would be the lower bound, and a mistake on other rows would then have the largest
    possible loss. If ``coupled``, the slope of a group depends on the other groups, so that signs
    of earlier slopes do not bracket the root.
    """
    theta = start
    low, high = torch.full_like(theta, LOW), torch.full_like(theta, HIGH)
    before = torch.full_like(theta, math.nan), torch.full_like(theta, math.nan)
    for passes in range(1, MAX_PASSES + 1):
        found = evaluate(theta)
        if not coupled:
            low = torch.where(found.slope < 0, theta, low)
            high = torch.where(found.slope > 0, theta, high)
        if found.value < PERFECT:
            return theta, FitReport(True, passes, found.value, PERFECT_NOTE, PERFECT_NOTE)
        proposal = _propose(theta, found, before, (low, high), trust=0.1 if coupled else 0.0)
        moved = float((proposal - theta).abs().amax())
        before, theta = (theta, found.slope), proposal
        if moved < TOLERANCE:
            count = int(((theta <= LOW) | (theta >= HIGH)).sum())
            bounds = f"[{TEMPERATURE_LOW:g}, {TEMPERATURE_HIGH:g}]"
            note = f"{count} of {len(theta)} temperatures on the bound of {bounds}" * (count > 0)
            return theta, FitReport(True, passes, found.value, note, note)
    note = f"last change {moved:.1e} in log T"
    return theta, FitReport(False, MAX_PASSES, found.value, note)


def _propose(
    theta: Tensor,
    found: Slopes,
    before: tuple[Tensor, Tensor],
    bracket: tuple[Tensor, Tensor],
    trust: float,
) -> Tensor:
    """Return the next points: a secant or Newton step, or the bracket's middle if a step leaves it.

    The secant, from the previous points and slopes (nan at first), is used if it exceeds ``trust``
    times the curvature estimate. All tensors are (G,).
    """
    low, high = bracket
    run = theta - before[0]
    secant = (found.slope - before[1]) / torch.where(run == 0, 1.0, run)
    usable = (run != 0) & (secant > trust * found.curvature)
    curvature = torch.where(usable, secant, found.curvature)
    flat = found.slope.abs() <= 1e-15 * max(abs(found.value), 1e-300)
    step = torch.where(flat, 0.0, -found.slope / curvature.clamp(min=1e-300))
    proposal = theta + step.clamp(-LONGEST_STEP, LONGEST_STEP)
    middle = 0.5 * (low + high)
    proposal = torch.where((proposal < low) & (low > LOW), middle, proposal)
    proposal = torch.where((proposal > high) & (high < HIGH), middle, proposal)
    return proposal.clamp(LOW, HIGH)
