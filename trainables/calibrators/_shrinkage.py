"""Shrinks maps towards temperature scaling with the strength that is best on held-out rows."""

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from trainables.calibrators._base import FitReport

VARIANTS = ("shrunk", "paper")
# From the strongest to the weakest, because each fit starts at the end of the previous one, and
# weak pulls, which take longest, are rarely needed.
PULLS = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0)
FOLDS, SEED = 5, 0
ENOUGH_ROWS = 2000
ROUGH = 1e-4  # Tolerance of the fits that only select the pull.
EQUAL_NOTE = "same as temperature scaling: a richer map does not improve held-out rows"


class PulledFit(Protocol):
    """A penalised likelihood of some rows that can also be pulled towards temperature scaling.

    Attributes:
        scaled: The parameters of temperature scaling with the best temperature of these rows.
    """

    scaled: Tensor

    def minimize(
        self, pull: float, start: Tensor | None, tolerance: float
    ) -> tuple[Tensor, FitReport]:
        """Return the best parameters and the report.

        ``pull`` >= 0 is the weight of the penalty towards ``scaled``. The search begins at
        ``start`` (at ``scaled`` if None) and ends when the relative gain is below ``tolerance``.
        """

    def loss(self, weights: Tensor) -> float:
        """Return the sum of ``-log p_y`` over the rows."""


def fit_shrunk(
    problem: Callable[[Tensor, Tensor], PulledFit], logits: Tensor, labels: Tensor, tolerance: float
) -> tuple[Tensor, FitReport]:
    """Fit with the pull that is best on held-out rows.

    If none is better there than temperature scaling, return temperature scaling. ``tolerance`` is
    for the final fit.
    """
    whole, pull = problem(logits, labels), _best_pull(problem, logits, labels)
    if math.isinf(pull):
        value = whole.loss(whole.scaled) / len(labels)
        return whole.scaled, FitReport(True, 0, value, EQUAL_NOTE)
    return whole.minimize(pull, None, tolerance)


def _best_pull(
    problem: Callable[[Tensor, Tensor], PulledFit], logits: Tensor, labels: Tensor
) -> float:
    folds = [
        (problem(logits[~held], labels[~held]), problem(logits[held], labels[held]))
        for held in validation_folds(len(labels), labels.device)
    ]
    found = [known.scaled for known, _ in folds]

    def loss() -> float:
        return sum(held.loss(at) for (_, held), at in zip(folds, found, strict=True))

    def score(pull: float) -> float:
        for index, (known, _) in enumerate(folds):
            found[index], _ = known.minimize(pull, found[index], ROUGH)
        return loss()

    return choose_pull(score, loss())


def choose_pull(score: Callable[[float], float], without: float) -> float:
    """Return the pull with the lowest held-out loss, or infinity if none is below ``without``.

    ``without`` is the loss of temperature scaling. ``score`` returns the loss with a pull; pulls
    are tried from the strongest on until one does not improve on ``without``.
    """
    most, chosen = 0.0, math.inf
    for pull in PULLS:
        gain = without - score(pull)
        if gain > most:
            most, chosen = gain, pull
        if gain <= 0:
            break
    return chosen


def validation_folds(rows: int, device: torch.device) -> Iterator[Tensor]:
    """Yield masks (N,) of held-out rows, fold by fold, until ``ENOUGH_ROWS`` rows were held out.

    Folds are not stratified: with equal class frequencies in all folds, biases that fit random
    frequencies would look good on held-out rows. Nothing is yielded for a single row.
    """
    parts = min(FOLDS, rows)
    fold = torch.randperm(rows, generator=torch.Generator().manual_seed(SEED)) % parts
    for index in range(parts if parts > 1 else 0):
        if index * rows // parts >= ENOUGH_ROWS:
            return
        yield (fold == index).to(device)
