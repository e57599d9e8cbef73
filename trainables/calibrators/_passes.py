"""One pass over the fitting rows: losses and their slopes in log T, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.calibrators._base import chunks
from trainables.calibrators.objectives import Objective, RowTerms


@dataclass(frozen=True)
class RowPass:
    """What one pass at a given temperature yields; all (N,), float64.

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
        log_temperature: Natural logarithm of the temperature, (N,) or (1,), float64.
        objective: What is evaluated.
    """
    inverse = (-log_temperature).exp().expand(logits.shape[0])
    found = RowPass(*(torch.empty_like(inverse).contiguous() for _ in range(3)))
    for part in chunks(logits):
        values = _chunk_pass(logits[part].double(), labels[part], inverse[part], objective)
        found.loss[part], found.slope[part], found.curvature[part] = values
    return found


def _chunk_pass(
    z: Tensor, labels: Tensor, s: Tensor, objective: Objective
) -> tuple[Tensor, Tensor, Tensor]:
    z = z - z.amax(1, keepdim=True)
    weights = (z * s.unsqueeze(1)).exp_()
    total = weights.sum(1)
    mean = torch.linalg.vecdot(weights, z) / total
    spread = (torch.linalg.vecdot(weights, z * z) / total - mean**2).clamp(min=0)
    log_total = total.log()
    chosen = z.gather(1, labels.unsqueeze(1)).squeeze(1)
    average = z.mean(1) if objective.needs_mean else torch.zeros_like(s)
    square, square_slope = torch.zeros_like(s), torch.zeros_like(s)
    if objective.needs_square:
        squares = weights * weights
        square = squares.sum(1) / total**2
        square_slope = 2 * (torch.linalg.vecdot(squares, z) / total**2 - square * mean)
    terms = RowTerms(s * chosen - log_total, s * average - log_total, square, z.shape[1])
    loss, pulls = row_gradients(objective, terms)
    to_label, to_mean, to_square = pulls
    in_s = to_label * (chosen - mean) + to_mean * (average - mean) + to_square * square_slope
    bend = -(to_label + to_mean) * spread
    return loss, -s * in_s, (s * s * bend).clamp(min=0)


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
    """Return the loss of each row and its derivative in each of the three row terms, all (N,)."""
    with torch.enable_grad():
        log_p, mean_log_p, sum_p2 = leaves = [
            term.detach().requires_grad_() for term in (terms.log_p, terms.mean_log_p, terms.sum_p2)
        ]
        loss = objective.per_row(RowTerms(log_p, mean_log_p, sum_p2, terms.num_classes))
        pulls = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
    filled = (
        torch.zeros_like(leaf) if pull is None else pull
        for leaf, pull in zip(leaves, pulls, strict=True)
    )
    return loss.detach(), tuple(filled)
