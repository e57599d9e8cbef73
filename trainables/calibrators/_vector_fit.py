"""Fits a slope and a bias a class by Newton's method, several fits at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport
from trainables.calibrators._passes import block_values, blocks, slices

MAX_STEPS = 100
TOLERANCE, FLAT = 1e-14, 1e-8
SUFFICIENT, ROUNDING = 1e-4, 1e-15
RIDGES = (1e-6, 1e-4, 1e-2)
TINY = 1e-300
AT_ONCE_VALUES = 1 << 20  # Entries of all curvatures of one pass: bounds its memory.


@dataclass(frozen=True)
class VectorFit:
    """One of the fits that are solved together.

    Attributes:
        rows: Which rows count, (N,), bool.
        start: Slopes that the fit starts from and is pulled towards, (K,), float64.
        weight_decay: Weight of half the squared distance from them, and of half the squared biases.
    """

    rows: Tensor
    start: Tensor
    weight_decay: float


@dataclass(frozen=True)
class _Point:
    """Slopes and biases (P, 2 K), and the objective there: value (P,), gradient and curvature."""

    at: Tensor
    value: Tensor
    gradient: Tensor
    curvature: Tensor

    def some(self, chosen: Tensor) -> _Point:
        """Return the fits that a mask (P,) chooses."""
        return _Point(
            self.at[chosen], self.value[chosen], self.gradient[chosen], self.curvature[chosen]
        )

    def replaced(self, chosen: Tensor, other: _Point) -> _Point:
        """Return this with the fits that a mask (P,) chooses taken from another."""
        column = chosen.unsqueeze(1)
        return _Point(
            torch.where(column, other.at, self.at),
            torch.where(chosen, other.value, self.value),
            torch.where(column, other.gradient, self.gradient),
            torch.where(column.unsqueeze(2), other.curvature, self.curvature),
        )


def fit_vectors(
    logits: Tensor, labels: Tensor, fits: Sequence[VectorFit]
) -> list[tuple[Tensor, Tensor, FitReport]]:
    """Minimise the mean of ``-log p_y`` of ``softmax(a * z + b)``, plus the penalty, for each fit.

    The objective is convex, so that a Newton step, halved until it gains enough, always helps. A
    fit comes out as it would alone, up to the rounding of sums.

    Args:
        logits: (N, K).
        labels: (N,), int64.
        fits: What is fitted, in common passes over the rows.

    Returns:
        Slopes (K,), biases (K,) and how the fit went, for each.
    """
    at_once = AT_ONCE_VALUES // max(len(labels), 4 * logits.shape[1] ** 2)
    solved = []
    for some in slices(len(fits), at_once):
        solved += _Fits(logits, labels, fits[some]).solve()
    return solved


class _Fits:
    """Fits that are solved in common passes."""

    def __init__(self, logits: Tensor, labels: Tensor, fits: Sequence[VectorFit]) -> None:
        self._logits, self._labels = logits, labels
        rows = torch.stack([fit.rows for fit in fits]).double()
        self._weights = rows / rows.sum(1, keepdim=True)
        slopes = torch.stack([fit.start for fit in fits])
        self._start = torch.cat([slopes, torch.zeros_like(slopes)], dim=1)
        decay = [[fit.weight_decay] for fit in fits]
        self._decay = torch.tensor(decay, dtype=torch.float64, device=logits.device)

    def solve(self) -> list[tuple[Tensor, Tensor, FitReport]]:
        """Return slopes, biases and report of each fit."""
        found: dict[int, tuple[Tensor, Tensor, FitReport]] = {}
        live = list(range(len(self._start)))
        here = self._evaluate(self._start, live)
        length = torch.ones_like(here.value)
        for steps in range(1, MAX_STEPS + 1):
            step, gain = _newton(here)
            flat = here.gradient.abs().amax(1) <= FLAT
            done = flat | (gain <= TOLERANCE * here.value.abs())
            over = done if steps < MAX_STEPS else torch.ones_like(done)
            for position in over.nonzero().flatten().tolist():
                converged = bool(done[position])
                at = here.at[position] + step[position] if converged else here.at[position]
                slope, bias = at.chunk(2)
                report = _report(converged, steps, float(here.value[position]))
                found[live[position]] = slope.clone(), bias.clone(), report
            live = [index for index, ended in zip(live, over.tolist(), strict=True) if not ended]
            if not live:
                break
            here, step, gain, length = here.some(~over), step[~over], gain[~over], length[~over]
            there = self._evaluate(here.at + length.unsqueeze(1) * step, live)
            enough = SUFFICIENT * length * gain - ROUNDING * here.value.abs()
            better = there.value <= here.value - enough
            here = here.replaced(better, there)
            length = torch.where(better, 1.0, 0.5 * length)
        return [found[index] for index in range(len(self._start))]

    def _evaluate(self, at: Tensor, live: Sequence[int]) -> _Point:
        """Evaluate the fits at the positions ``live`` at slopes and biases (L, 2 K)."""
        fits, width = at.shape
        value = at.new_zeros(fits)
        gradient, curvature = torch.zeros_like(at), at.new_zeros(fits, width, width)
        for part in blocks(self._logits):
            z, labels = self._logits[part].double(), self._labels[part]
            for chosen in slices(fits, block_values(z) // z.numel()):
                weights = self._weights[live[chosen]][:, part]
                sums = value[chosen], gradient[chosen], curvature[chosen]
                _add_rows(sums, at[chosen], z, labels, weights)
        away, decay = at - self._start[live], self._decay[live]
        value += 0.5 * (decay * away.square()).sum(1)
        gradient += decay * away
        curvature.diagonal(dim1=1, dim2=2).add_(decay)
        return _Point(at, value, gradient, curvature)


def _add_rows(
    sums: tuple[Tensor, Tensor, Tensor], at: Tensor, z: Tensor, labels: Tensor, weights: Tensor
) -> None:
    """Add what rows z (n, K) contribute to the value, gradient and curvature of L fits.

    Args:
        sums: (L,), (L, 2 K) and (L, 2 K, 2 K); changed in place.
        at: Slopes and biases, (L, 2 K).
        z: (n, K), float64.
        labels: (n,).
        weights: What each row counts in each fit, (L, n).
    """
    value, gradient, curvature = sums
    fits, classes = len(at), z.shape[1]
    slope, bias = at.unsqueeze(1).chunk(2, dim=2)
    mapped = torch.addcmul(bias, z, slope)
    index = labels.view(1, -1, 1).expand(fits, -1, 1)
    mapped -= mapped.amax(2, keepdim=True)
    label = mapped.gather(2, index).squeeze(2)
    total = mapped.exp_().sum(2)
    value += (weights * (total.log() - label)).sum(1)
    # The last factor of the curvature: probabilities times the logits beside the probabilities.
    spread = z.new_empty(fits, len(z), 2 * classes)
    probabilities = spread[:, :, classes:]
    torch.div(mapped, total.unsqueeze(2), out=probabilities)
    torch.mul(probabilities, z, out=spread[:, :, :classes])
    weighted = spread * weights.unsqueeze(2)
    in_slope, in_bias = weighted.sum(1).chunk(2, dim=1)
    gradient[:, :classes] += in_slope
    gradient[:, classes:] += in_bias
    _take_labels(gradient, z, labels, weights)
    # In single precision: a curvature that is off in the seventh digit costs no step.
    curvature -= weighted.float().transpose(1, 2) @ spread.float()
    squares = torch.einsum("lnk,nk->lk", weighted[:, :, :classes], z)
    for offset, diagonal in ((0, torch.cat([squares, in_bias], 1)), (classes, in_slope)):
        curvature.diagonal(offset, 1, 2).add_(diagonal)
        if offset:
            curvature.diagonal(-offset, 1, 2).add_(diagonal)


def _take_labels(gradient: Tensor, z: Tensor, labels: Tensor, weights: Tensor) -> None:
    """Subtract from the gradient (L, 2 K) what the labels of the rows contribute."""
    index = labels.expand_as(weights)
    own = z.gather(1, labels.unsqueeze(1)).squeeze(1)
    gradient.scatter_add_(1, index, -weights * own)
    gradient.scatter_add_(1, index + z.shape[1], -weights)


def _newton(here: _Point) -> tuple[Tensor, Tensor]:
    """Return the Newton step (P, 2 K) and what it gains, about, (P,).

    The curvature is scaled to a unit diagonal, and given a ridge as small as it can be where it is
    singular, as it is without a penalty: adding a constant to all biases changes nothing.
    """
    scale = here.curvature.diagonal(dim1=1, dim2=2).clamp(min=TINY).rsqrt()
    scaled = here.curvature * scale.unsqueeze(1) * scale.unsqueeze(2)
    eye = torch.eye(scaled.shape[1], dtype=scaled.dtype, device=scaled.device)
    factor, failed = torch.linalg.cholesky_ex(scaled + RIDGES[0] * eye)
    for ridge in RIDGES[1:]:
        again = failed > 0
        if not bool(again.any()):
            break
        factor[again], failed[again] = torch.linalg.cholesky_ex(scaled[again] + ridge * eye)
    slopes = (here.gradient * scale).unsqueeze(2)
    step = -scale * torch.cholesky_solve(slopes, factor).squeeze(2)
    return step, -0.5 * (step * here.gradient).sum(1)


def _report(converged: bool, steps: int, value: float) -> FitReport:
    note = "" if converged else f"still gaining after {steps} Newton steps"
    return FitReport(converged, steps, value, note)
