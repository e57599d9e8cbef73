"""Passes over the fitting rows: losses and their slopes in log T, a small block at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.calibrators.objectives import Objective, RowTerms
from trainables.common.logit_rows import find_masked, mean_allowed, row_blocks

KEPT_VALUES = 1 << 25  # Up to 256 MiB of rows are kept as passes read them.


@dataclass(frozen=True)
class RowPass:
    """The result of one pass at given temperatures; all (N,), float64.

    Attributes:
        loss: Loss of each row under the objective.
        slope: Its derivative in the logarithm of the row's temperature.
        curvature: A non-negative estimate of the second derivative (exact for ``ce`` and ``ls`` up
            to a term that vanishes with the slope).
    """

    loss: Tensor
    slope: Tensor
    curvature: Tensor


class TemperaturePasses:
    """Evaluates an objective with each row divided by its own temperature, as often as asked."""

    def __init__(self, logits: Tensor, labels: Tensor, objective: Objective) -> None:
        self.logits, self.labels, self.objective = logits, labels, objective
        self._masked = find_masked(logits) if objective.needs_mean else None
        # To cast and transpose the rows takes as long as to sum over their classes.
        self._kept = list(self._blocks()) if logits.numel() <= KEPT_VALUES else None

    def __call__(self, log_temperature: Tensor) -> RowPass:
        """Go through the rows once at logarithms of the temperature, (N,) or (1,), float64."""
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
        """Sum over the classes of each row, whose largest logit is moved to 0.

        Args:
            s: Inverse temperatures, (N,).

        Returns:
            The logit of the label, (N,); the mean logit, (N,), zeros unless the objective reads it;
            and, with ``w = exp(s z)``, the sums of w, w z and w z^2 and, where the objective reads
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
        """Yield some rows and their logits, float64, (K, n), the largest of each row at 0."""
        for part in row_blocks(self.logits):
            some = self.logits[part].T
            # Classes first: sums over them then run along the rows, however few classes there are.
            z = torch.empty(some.shape, dtype=torch.float64, device=some.device).copy_(some)
            yield part, z.sub_(z.amax(0))


def _sum_powers(out: Tensor, weights: Tensor, z: Tensor) -> None:
    """Put the sums of w, w z, w z^2 ... over the classes into ``out``; w is changed in place."""
    for power, values in enumerate(out):
        torch.sum(weights if power == 0 else weights.mul_(z), 0, out=values)


def softmax_in_place(mapped: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Turn mapped logits (N, K) into probabilities in their memory; also ``-log p_y``, (N,)."""
    mapped -= mapped.amax(1, keepdim=True)
    chosen = mapped.gather(1, labels.unsqueeze(1)).squeeze(1)
    total = mapped.exp_().sum(1)
    return mapped.div_(total.unsqueeze(1)), total.log() - chosen


def residuals_in_place(mapped: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Turn mapped logits (N, K) into the derivative in them of ``-log p_y``; also that, (N,)."""
    probabilities, losses = softmax_in_place(mapped, labels)
    ones = torch.ones_like(mapped[:, :1])
    return probabilities.scatter_add_(1, labels.unsqueeze(1), -ones), losses


def row_gradients(objective: Objective, terms: RowTerms) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss of each row and its derivative in each of the three row terms."""
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
