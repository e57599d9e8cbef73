"""Passes over the fitting rows: losses and their slopes in log T, a small block at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.calibrators.objectives import Objective, RowTerms

# Temporaries of this many values stay in a core's cache; a GPU wants large ones.
BLOCK_VALUES = {"cpu": 1 << 16, "cuda": 1 << 22}


@dataclass(frozen=True)
class RowPass:
    """What one pass at given temperatures yields; all (N,), or (P, N) for P fits; float64.

    Attributes:
        loss: Loss of each row under the objective.
        slope: Its derivative in the logarithm of the row's temperature.
        curvature: A non-negative estimate of the second derivative (exact for ``ce`` and ``ls`` up
            to a term that vanishes with the slope).
    """

    loss: Tensor
    slope: Tensor
    curvature: Tensor


def temperature_pass(
    logits: Tensor, labels: Tensor, log_temperature: Tensor, objective: Objective
) -> RowPass:
    """Evaluate the objective with each row divided by its own temperature.

    Args:
        logits: (N, K).
        labels: (N,), int64.
        log_temperature: Natural logarithm of the temperature, float64: (N,) or (1,) for one fit,
            (P, N) or (P, 1) for P fits at once.
        objective: What is evaluated; for P fits one that is ``stacked`` of theirs.
    """
    s = (-log_temperature).exp()
    s = s.expand(*s.shape[:-1], len(labels))
    at = _sums(logits, labels, s if s.ndim == 2 else s.unsqueeze(0), objective)
    total, first, second, *squares = (values.view_as(s) for values in at.powers)
    mean, log_total = first / total, total.log()
    spread = (second / total - mean.square()).clamp_(min=0)
    log_p, mean_log_p = s * at.chosen - log_total, s * at.average - log_total
    square = squares[0] / total.square() if squares else s.new_zeros(()).expand_as(s)
    terms = RowTerms(log_p, mean_log_p, square, logits.shape[1])
    loss, (to_label, to_mean, to_square) = row_gradients(objective, terms)
    to_both = to_label + to_mean
    in_s = to_label * at.chosen + to_mean * at.average - to_both * mean
    if squares:
        in_s += 2 * to_square * (squares[1] / total.square() - square * mean)
    return RowPass(loss, -s * in_s, (s.square() * -to_both * spread).clamp_(min=0))


@dataclass(frozen=True)
class _Sums:
    """What is needed of the classes of each row, whose largest logit is moved to 0.

    Attributes:
        chosen: Logit of the label, (N,).
        average: Mean logit, (N,); zeros unless the objective reads it.
        powers: With ``w = exp(s z)``, the sums of w, w z and w z^2, and, where the objective reads
            squared probabilities, of w^2 and w^2 z; (3 or 5, P, N).
    """

    chosen: Tensor
    average: Tensor
    powers: Tensor


def _sums(logits: Tensor, labels: Tensor, s: Tensor, objective: Objective) -> _Sums:
    """Go through the rows once, for all fits; ``s`` holds inverse temperatures, (P, N)."""
    fits, rows = s.shape
    powers = s.new_empty(5 if objective.needs_square else 3, fits, rows)
    found = _Sums(s.new_zeros(rows), s.new_zeros(rows), powers)
    for part in blocks(logits):
        # Classes first: sums over them then run along the rows, however few classes there are.
        z = logits[part].T.double().contiguous()
        z -= z.amax(0)
        found.chosen[part] = z.gather(0, labels[part].unsqueeze(0)).squeeze(0)
        if objective.needs_mean:
            found.average[part] = z.mean(0)
        for few in slices(fits, block_values(logits) // z.numel()):
            weights = (z * s[few, None, part]).exp_()
            if objective.needs_square:
                _add_up(powers[3:, few, part], weights.square(), z)
            _add_up(powers[:3, few, part], weights, z)
    return found


def _add_up(out: Tensor, weights: Tensor, z: Tensor) -> None:
    """Put the sums of w, w z, w z^2 ... over the classes into ``out``; w is changed in place."""
    for power, values in enumerate(out):
        torch.sum(weights if power == 0 else weights.mul_(z), 1, out=values)


def blocks(logits: Tensor) -> list[slice]:
    """Cut rows (N, K) into slices whose float64 temporaries stay in a core's cache."""
    return slices(len(logits), block_values(logits) // logits.shape[1])


def slices(count: int, size: int) -> list[slice]:
    """Cut ``range(count)`` into slices of a size, at least 1."""
    step = max(1, size)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def block_values(logits: Tensor) -> int:
    """Return how many float64 values of a temporary stay in a core's cache."""
    return BLOCK_VALUES.get(logits.device.type, BLOCK_VALUES["cpu"])


def softmax_in_place(mapped: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Turn mapped logits (N, K) into probabilities in their own memory.

    Returns:
        The probabilities, and ``-log p_y`` of each row, (N,).
    """
    mapped -= mapped.amax(1, keepdim=True)
    chosen = mapped.gather(1, labels.unsqueeze(1)).squeeze(1)
    total = mapped.exp_().sum(1)
    return mapped.div_(total.unsqueeze(1)), total.log() - chosen


def residuals_in_place(mapped: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Turn mapped logits (N, K) into the derivative of each row's ``-log p_y`` in them.

    Returns:
        Probabilities minus one-hot labels, (N, K), and ``-log p_y`` of each row, (N,).
    """
    probabilities, losses = softmax_in_place(mapped, labels)
    index = labels.unsqueeze(1)
    return probabilities.scatter_add_(1, index, -torch.ones_like(mapped[:, :1])), losses


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
