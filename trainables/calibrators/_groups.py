"""Fits one temperature a group of rows: safeguarded Newton on its logarithm.

All groups of all fits on rows of one table are solved at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators._minimize import Evaluate, first_step, in_rounds
from trainables.calibrators._passes import RowPass, block_values, slices, temperature_pass
from trainables.calibrators.objectives import Objective

TEMPERATURE_LOW, TEMPERATURE_HIGH = 0.01, 100.0
LOW, HIGH = math.log(TEMPERATURE_LOW), math.log(TEMPERATURE_HIGH)
LONGEST_STEP = 1.5
TOLERANCE = 1e-10
PERFECT = 1e-5
PERFECT_NOTE = f"loss below {PERFECT:g}: the rows do not determine the temperature"
MAX_PASSES = 100
AT_ONCE_BLOCKS = 2  # Rows times fits of one pass, in ``block_values``: bounds its memory.


@dataclass(frozen=True)
class TemperatureFit:
    """One of the fits that are solved together.

    Attributes:
        objective: What is minimised; an adaptive one is this fit's own, its scaling is set here.
        rows: Which rows count, (N,), bool; all of them if left out.
        prior_log: Log temperature towards which groups are shrunk.
        shrinkage: Weight of the quadratic pull towards ``prior_log``, in rows.
    """

    objective: Objective
    rows: Tensor | None = None
    prior_log: float = 0.0
    shrinkage: float = 0.0


@dataclass(frozen=True)
class Slopes:
    """Values (P,), slopes in the log temperature of each group and their curvature, both (P, G)."""

    value: Tensor
    slope: Tensor
    curvature: Tensor


def fit_temperatures(
    logits: Tensor,
    labels: Tensor,
    groups: Tensor,
    num_groups: int,
    fits: Sequence[TemperatureFit],
) -> list[tuple[Tensor, FitReport]]:
    """Find the temperatures of several fits on rows of one table, in common passes over it.

    A fit comes out as it would alone, up to the rounding of sums: its steps depend on nothing of
    the others, and it takes no more of them than it needs.

    Args:
        logits: (N, K).
        labels: (N,), int64.
        groups: Group of each row, (N,), in [0, G).
        num_groups: G.
        fits: What is fitted.

    Returns:
        For each fit its temperatures (G,), float64, in [0.01, 100], and how it went. Groups without
        rows, or whose rows do not depend on the temperature, keep ``exp(prior_log)``.
    """
    table = _Table(logits, labels, groups, num_groups)
    alike: dict[Any, list[int]] = {}
    for index, fit in enumerate(fits):
        alike.setdefault(fit.objective.kind(), []).append(index)
    at_once = AT_ONCE_BLOCKS * block_values(logits) // len(labels)
    found: dict[int, tuple[Tensor, FitReport]] = {}
    for of_kind in alike.values():
        for part in slices(len(of_kind), at_once):
            some = of_kind[part]
            solved = _FitsOfKind(table, [fits[index] for index in some]).solve()
            found.update(zip(some, solved, strict=True))
    return [found[index] for index in range(len(fits))]


def fit_temperature(
    logits: Tensor, labels: Tensor, objective: Objective
) -> tuple[Tensor, FitReport]:
    """Return the best single temperature (1,) of all rows, and how the fit went."""
    one_group = torch.zeros_like(labels)
    return fit_temperatures(logits, labels, one_group, 1, [TemperatureFit(objective)])[0]


@dataclass(frozen=True)
class _Table:
    """What all fits read; see ``fit_temperatures``."""

    logits: Tensor
    labels: Tensor
    groups: Tensor
    num_groups: int


class _FitsOfKind:
    """Fits whose objectives are of one kind, so that a pass serves them all."""

    def __init__(self, table: _Table, fits: Sequence[TemperatureFit]) -> None:
        self._table, self._fits = table, fits
        everything = torch.ones_like(table.labels, dtype=torch.bool)
        rows = [everything if fit.rows is None else fit.rows for fit in fits]
        self._rows = torch.stack(rows)
        counts = self._rows.sum(1).tolist()
        self._pull = self._column([f.shrinkage / n for f, n in zip(fits, counts, strict=True)])
        self._prior = self._column([fit.prior_log for fit in fits])
        self._stacked = first = fits[0].objective
        self._stacked_fits = 0
        self._adaptive = first.adaptive
        self._coupled = first.adaptive and table.num_groups > 1
        if not self._adaptive:
            nothing = torch.zeros(self._rows.shape, dtype=torch.float64, device=self._rows.device)
            self._even = self._weights(nothing, range(len(fits)))

    def solve(self) -> list[tuple[Tensor, FitReport]]:
        """Return temperatures (G,) and report of each fit."""
        self._prepare()
        start = self._prior.expand(-1, self._table.num_groups)
        theta, reports = solve(self._evaluate, start, coupled=self._coupled)
        solved = list(zip(theta, reports, strict=True))
        if self._coupled:
            solved = [
                one if one[1].converged else self._settle(index, one[0])
                for index, one in enumerate(solved)
            ]
        return [(theta.exp(), report) for theta, report in solved]

    def _evaluate(self, theta: Tensor, live: Sequence[int]) -> Slopes:
        """Evaluate the fits at the positions ``live`` at their log temperatures, (L, G)."""
        rows = self._pass(theta, live)
        chosen = _index(live, self._rows)
        weights = self._weights(rows.loss, live) if self._adaptive else self._even[chosen]
        pull, away = self._pull[chosen], theta - self._prior[chosen]
        return Slopes(
            (weights * rows.loss).sum(1) + 0.5 * (pull * away.square()).sum(1),
            self._by_group(weights * rows.slope) + pull * away,
            self._by_group(weights * rows.curvature) + pull,
        )

    def _pass(self, theta: Tensor, live: Sequence[int]) -> RowPass:
        table = self._table
        if len(live) != self._stacked_fits:  # Fits end, and none comes back.
            objectives = [self._fits[index].objective for index in live]
            self._stacked = objectives[0].stacked(objectives, theta.device)
            self._stacked_fits = len(live)
        at_rows = theta if table.num_groups == 1 else theta[:, table.groups]
        return temperature_pass(table.logits, table.labels, at_rows, self._stacked)

    def _weights(self, losses: Tensor, live: Sequence[int]) -> Tensor:
        """Return what each row counts in each fit, (L, N), given its losses; 0 outside its rows."""
        classes = self._table.logits.shape[1]
        weights = torch.zeros_like(losses)
        for position, index in enumerate(live):
            rows, objective = self._rows[index], self._fits[index].objective
            own = objective.row_weights(losses[position, rows], self._table.labels[rows], classes)
            weights[position, rows] = own
        return weights

    def _by_group(self, values: Tensor) -> Tensor:
        """Return the sums of values (L, N) over the rows of each group, (L, G)."""
        if self._table.num_groups == 1:
            return values.sum(1, keepdim=True)
        sums = values.new_zeros(len(values), self._table.num_groups)
        return sums.scatter_add_(1, self._table.groups.expand_as(values), values)

    def _prepare(self) -> None:
        """Let adaptive objectives see the losses before and after the released first step."""
        if not self._adaptive:
            return
        everyone = range(len(self._fits))
        theta = torch.zeros_like(self._prior.expand(-1, self._table.num_groups))
        rows = self._pass(theta, everyone)
        for objective, own in self._told(rows.loss):
            objective.begin(*own)
        slopes = self._by_group(self._weights(rows.loss, everyone) * rows.slope)
        stepped = torch.stack([(1 - first_step(slope)).log() for slope in slopes])
        for objective, own in self._told(self._pass(stepped, everyone).loss):
            objective.freeze(*own)

    def _told(self, losses: Tensor) -> Iterator[tuple[Objective, tuple[Tensor, Tensor, int]]]:
        """Yield every objective with the losses and labels of its fit's rows, and K."""
        labels, classes = self._table.labels, self._table.logits.shape[1]
        for fit, own, rows in zip(self._fits, losses, self._rows, strict=True):
            yield fit.objective, (own[rows], labels[rows], classes)

    def _settle(self, index: int, start: Tensor) -> tuple[Tensor, FitReport]:
        fit, rows, table = self._fits[index], self._rows[index], self._table
        return settle(
            table.logits[rows],
            table.labels[rows],
            table.groups[rows],
            fit.objective,
            start,
            float(self._pull[index]),
            fit.prior_log,
        )

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._rows.device).unsqueeze(1)


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


def solve(
    evaluate: Callable[[Tensor, Sequence[int]], Slopes], start: Tensor, *, coupled: bool
) -> tuple[Tensor, list[FitReport]]:
    """Find where all slopes vanish, inside [LOW, HIGH], or where hardly any loss is left.

    Rows that a vanishing temperature fits without loss would send it to its lower bound, and the
    first mistake on other rows would then cost the most it can.

    Args:
        evaluate: Slopes and curvatures of the fits at some positions, at (L, G) log temperatures.
        start: Where to begin, (P, G).
        coupled: Whether the slope of a group depends on the other groups of its fit, so that a sign
            seen earlier is no bracket.
    """
    theta = start.clone()
    low, high = torch.full_like(theta, LOW), torch.full_like(theta, HIGH)
    before, slopes = torch.full_like(theta, math.nan), torch.full_like(theta, math.nan)
    reports: dict[int, FitReport] = {}
    live = list(range(len(theta)))
    for passes in range(1, MAX_PASSES + 1):
        chosen = _index(live, theta)
        at = theta[chosen].clone()
        found = evaluate(at, live)
        if not coupled:
            low[chosen] = torch.where(found.slope < 0, at, low[chosen])
            high[chosen] = torch.where(found.slope > 0, at, high[chosen])
        proposal = _propose(
            at,
            found,
            (before[chosen], slopes[chosen]),
            (low[chosen], high[chosen]),
            trust=0.1 if coupled else 0.0,
        )
        perfect = found.value < PERFECT
        proposal = torch.where(perfect.unsqueeze(1), at, proposal)
        before[chosen], slopes[chosen], theta[chosen] = at, found.slope, proposal
        moved = (proposal - at).abs().amax(1)
        outcome = zip(live, moved.tolist(), found.value.tolist(), perfect.tolist(), strict=True)
        live = []
        for index, distance, value, is_perfect in outcome:
            if distance < TOLERANCE:
                note = PERFECT_NOTE if is_perfect else _bound_note(theta[index])
                reports[index] = FitReport(True, passes, value, note)
            elif passes == MAX_PASSES:
                reports[index] = FitReport(
                    False, passes, value, f"last change {distance:.1e} in log T"
                )
            else:
                live.append(index)
        if not live:
            break
    return theta, [reports[index] for index in range(len(theta))]


def _index(live: Sequence[int], all_of_them: Tensor) -> Any:
    """Return an index of the rows ``live``; that of all rows copies nothing."""
    return slice(None) if len(live) == len(all_of_them) else list(live)


def _propose(
    theta: Tensor,
    found: Slopes,
    before: tuple[Tensor, Tensor],
    bracket: tuple[Tensor, Tensor],
    trust: float,
) -> Tensor:
    """Return the next points: a secant or Newton step, cut to the bracket or halving it.

    A secant, from the points and slopes before (nan at first), counts where it is at least
    ``trust`` times the curvature estimate. All are (L, G).
    """
    low, high = bracket
    run = theta - before[0]
    secant = (found.slope - before[1]) / torch.where(run == 0, 1.0, run)
    usable = (run != 0) & (secant > trust * found.curvature)
    curvature = torch.where(usable, secant, found.curvature)
    scale = found.value.abs().clamp(min=1e-300).unsqueeze(1)
    flat = found.slope.abs() <= 1e-15 * scale
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
