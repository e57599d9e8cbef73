"""Scores every row by a calibrator that has not seen it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from trainables.calibrators._base import Calibrator, check_rows
from trainables.common.checks import check_count
from trainables.common.errors import InputError


def cross_fit(
    build: Callable[[], Calibrator], logits: Any, labels: Any, folds: int = 5, seed: int = 0
) -> Tensor:
    """Calibrate each row with a calibrator fitted on the other folds.

    Args:
        build: Makes a fresh, unfitted calibrator.
        logits: (N, K); see ``Calibrator.fit``.
        labels: (N,), whole numbers in [0, K).
        folds: Number of folds, in [2, N].
        seed: Decides which rows share a fold.

    Returns:
        Log-probabilities (N, K), in the order of the rows.

    Raises:
        InputError: If there are fewer rows than folds, or the rows are not as ``fit`` wants them.
    """
    rows, targets = check_rows(logits, labels)
    out = torch.empty_like(rows)
    for calibrator, held_out in fold_calibrators(build, rows, targets, folds, seed):
        out[held_out] = calibrator(rows[held_out])
    return out


def fold_calibrators(
    build: Callable[[], Calibrator], logits: Any, labels: Any, folds: int = 5, seed: int = 0
) -> Iterator[tuple[Calibrator, Tensor]]:
    """Yield a calibrator for each fold, fitted on the others, and the positions of its rows.

    It is ``cross_fit`` for whoever cannot hold all log-probabilities at once: each row is in one
    fold. See there for arguments and errors.
    """
    rows, targets = check_rows(logits, labels)
    parts = check_count("folds", folds, 2)
    if len(rows) < parts:
        raise InputError(f"folds={parts} needs at least as many rows, got {len(rows)}")
    fold = stratified_folds(targets, parts, seed)
    for index in range(parts):
        others = fold != index
        yield build().fit(rows[others], targets[others]), (~others).nonzero().squeeze(1)


def stratified_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """Deal the rows of each class out to the folds in turn, (N,), in an order fixed by the seed.

    Dealing goes on where the class before stopped: every class is spread as evenly as its size
    allows, fold sizes differ by at most one, and no class needs as many rows as there are folds.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order.to(labels.device)
    by_class = order[torch.argsort(labels[order], stable=True)]
    fold = torch.empty_like(labels)
    fold[by_class] = torch.arange(len(labels), device=labels.device) % folds
    return fold
