"""Fits one temperature a group of rows: safeguarded Newton on its logarithm, all groups at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators._minimize import Evaluate, first_step, in_rounds
from trainables.calibrators._passes import RowPass, temperature_pass
from trainables.calibrators.objectives import Objective

TEMPERATURE_LOW, TEMPERATURE_HIGH = 0.01, 100.0
LOW, HIGH = math.log(TEMPERATURE_LOW), math.log(TEMPERATURE_HIGH)
LONGEST_STEP = 1.5
TOLERANCE = 1e-10
PERFECT = 1e-5
PERFECT_NOTE = f"loss below {PERFECT:g}: the rows do not determine the temperature"
MAX_PASSES = 100


@dataclass(frozen=True)
class Slopes:
    """Derivative of the objective in each group's log temperature, and its curvature, (G,)."""

    value: float
    slope: Tensor
    curvature: Tensor


def fit_group_temperatures(
    logits: Tensor,
    labels: Tensor,
    groups: Tensor,
    num_groups: int,
    objective: Objective,
    *,
    prior_log: float = 0.0,
    shrinkage: float = 0.0,
) -> tuple[Tensor, FitReport]:
    """Find the temperature of each group where the objective is stationary.

    Args:
        logits: (N, K).
        labels: (N,), int64.
        groups: Group of each row, (N,), in [0, G).
        num_groups: G.
        objective: What is minimised; its adaptive scaling is set here.
        prior_log: Log temperature towards which groups are shrunk.
        shrinkage: Weight of the quadratic pull towards ``prior_log``, in rows.

    Returns:
        Temperatures (G,), float64, in [0.01, 100], and how the fit went. Groups without rows, or
        whose rows do not depend on the temperature, keep ``exp(prior_log)``.
    """
    pull = shrinkage / logits.shape[0]

    def evaluate(theta: Tensor) -> Slopes:
        rows = temperature_pass(logits, labels, theta[groups], objective)
        found = group_slopes(rows, labels, groups, num_groups, objective, logits.shape[1])
        away = theta - prior_log
        return Slopes(
            found.value + 0.5 * pull * float((away**2).sum()),
            found.slope + pull * away,
            found.curvature + pull,
        )

    prepare_objective(logits, labels, groups, num_groups, objective)
    start = torch.full((num_groups,), prior_log, dtype=torch.float64, device=logits.device)
    coupled = objective.adaptive and num_groups > 1
    theta, report = solve(evaluate, start, coupled=coupled)
    if coupled and not report.converged:
        away = shrinkage / logits.shape[0], prior_log
        theta, report = settle(logits, labels, groups, objective, theta, *away)
    return theta.exp(), report


def settle(
    logits: Tensor,
    labels: Tensor,
    groups: Tensor,
    objective: Objective,
    start: Tensor,
    pull: float,
    prior_log: float,
) -> tuple[Tensor, FitReport]:
    """Find where groups stay that push each other back and forth through adaptive row weights."""

    def with_weights(weights: Tensor) -> Evaluate:
        def evaluate(parameters: Sequence[Tensor]) -> tuple[float, Sequence[Tensor]]:
            theta = parameters[0]
            rows = temperature_pass(logits, labels, theta[groups], objective)
            slope = torch.zeros_like(theta).index_add(0, groups, weights * rows.slope)
            away = theta - prior_log
            value = float(weights @ rows.loss + 0.5 * pull * away.square().sum())
            return value, [slope + pull * away]

        return evaluate

    def losses(parameters: Sequence[Tensor]) -> Tensor:
        return temperature_pass(logits, labels, parameters[0][groups], objective).loss

    found, report = in_rounds(with_weights, losses, [start], labels, logits.shape[1], objective)
    return found[0].clamp(LOW, HIGH), report


def group_slopes(
    rows: RowPass,
    labels: Tensor,
    groups: Tensor,
    num_groups: int,
    objective: Objective,
    num_classes: int,
) -> Slopes:
    """Sum a pass over the rows of each group, with the weights that the objective gives."""
    weights = objective.row_weights(rows.loss, labels, num_classes)
    empty = torch.zeros(num_groups, dtype=torch.float64, device=labels.device)
    return Slopes(
        float((weights * rows.loss).sum()),
        empty.index_add(0, groups, weights * rows.slope),
        empty.index_add(0, groups, weights * rows.curvature),
    )


def prepare_objective(
    logits: Tensor, labels: Tensor, groups: Tensor, num_groups: int, objective: Objective
) -> None:
    """Let an adaptive objective see the losses before and after the released first step from 1."""
    if not objective.adaptive:
        return
    num_classes = logits.shape[1]
    theta = torch.zeros(num_groups, dtype=torch.float64, device=logits.device)
    rows = temperature_pass(logits, labels, theta[groups], objective)
    objective.begin(rows.loss, labels, num_classes)
    slope = group_slopes(rows, labels, groups, num_groups, objective, num_classes).slope
    stepped = (1 - first_step(slope)).log()
    rows = temperature_pass(logits, labels, stepped[groups], objective)
    objective.freeze(rows.loss, labels, num_classes)


def solve(
    evaluate: Callable[[Tensor], Slopes], start: Tensor, *, coupled: bool
) -> tuple[Tensor, FitReport]:
    """Find where all slopes vanish, inside [LOW, HIGH], or where hardly any loss is left.

    Rows that a vanishing temperature fits without loss would send it to its lower bound, and the
    first mistake on other rows would then cost the most it can.

    Args:
        evaluate: Slopes and curvatures at (G,) log temperatures.
        start: Where to begin, (G,).
        coupled: Whether the slope of a group depends on the other groups, so that a sign seen
            earlier is no bracket.
    """
    theta = start.clone()
    low, high = torch.full_like(theta, LOW), torch.full_like(theta, HIGH)
    before: tuple[Tensor, Tensor] | None = None
    for passes in range(1, MAX_PASSES + 1):
        found = evaluate(theta)
        if found.value < PERFECT:
            return theta, FitReport(True, passes, found.value, PERFECT_NOTE)
        if not coupled:
            low = torch.where(found.slope < 0, theta, low)
            high = torch.where(found.slope > 0, theta, high)
        proposal = _propose(theta, found, before, (low, high), trust=0.1 if coupled else 0.0)
        before = theta, found.slope
        moved = float((proposal - theta).abs().max())
        theta = proposal
        if moved < TOLERANCE:
            return theta, FitReport(True, passes, found.value, _bound_note(theta))
    return theta, FitReport(False, MAX_PASSES, found.value, f"last change {moved:.1e} in log T")


def _propose(
    theta: Tensor,
    found: Slopes,
    before: tuple[Tensor, Tensor] | None,
    bracket: tuple[Tensor, Tensor],
    trust: float,
) -> Tensor:
    """Return the next point: a secant or Newton step, cut to the bracket or halving it.

    A secant counts where it is at least ``trust`` times the curvature estimate.
    """
    low, high = bracket
    curvature = found.curvature
    if before is not None:
        run = theta - before[0]
        secant = (found.slope - before[1]) / torch.where(run == 0, 1.0, run)
        usable = (run != 0) & (secant > trust * curvature)
        curvature = torch.where(usable, secant, curvature)
    flat = found.slope.abs() <= 1e-15 * max(abs(found.value), 1e-300)
    step = torch.where(flat, 0.0, -found.slope / curvature.clamp(min=1e-300))
    proposal = theta + step.clamp(-LONGEST_STEP, LONGEST_STEP)
    middle = 0.5 * (low + high)
    proposal = torch.where((proposal < low) & (low > LOW), middle, proposal)
    proposal = torch.where((proposal > high) & (high < HIGH), middle, proposal)
    return proposal.clamp(LOW, HIGH)


def _bound_note(theta: Tensor) -> str:
    count = int(((theta <= LOW) | (theta >= HIGH)).sum())
    bounds = f"[{TEMPERATURE_LOW:g}, {TEMPERATURE_HIGH:g}]"
    return f"{count} of {len(theta)} temperatures on the bound of {bounds}" if count else ""
