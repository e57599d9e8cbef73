"""How strongly a rich calibrator is pulled towards temperature scaling, chosen on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# From the strongest to the weakest: each fit starts where the one before has ended, and those that
# follow noise, which take the longest, are hardly ever asked for.
PULLS = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0)
FOLDS, SEED = 5, 0
ENOUGH_ROWS = 2000


def choose_pull(score: Callable[[float], float], without: float) -> float:
    """Return the pull with the lowest held-out loss, infinity where no deviation lowers it.

    Args:
        score: Held-out loss at a pull; asked from the strongest on, until one is no better than
            temperature scaling. The loss may rise and fall again before.
        without: Held-out loss of temperature scaling, which is the infinite pull.
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
    """Yield masks (N,) of held-out rows: of each fold until ``ENOUGH_ROWS`` rows were held out.

    Folds are drawn without regard to classes: in stratified ones the frequencies of the classes
    are the same, so that biases which follow the chance in them look good on held-out rows. A
    single row cannot be held out; nothing is yielded then.
    """
    parts = min(FOLDS, rows)
    fold = torch.randperm(rows, generator=torch.Generator().manual_seed(SEED)) % parts
    for index in range(parts if parts > 1 else 0):
        if index * rows // parts >= ENOUGH_ROWS:
            return
        yield (fold == index).to(device)
