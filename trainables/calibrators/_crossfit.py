"""Calibrates every row with a calibrator that was fitted without it."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from trainables.calibrators._base import Calibrator, FitWarning, check_rows
from trainables.calibrators._registry import build_calibrator
from trainables.common.errors import InputError
from trainables.common.fields import check_count


def cross_fit(
    build: Callable[[], Calibrator],
    logits: Any,
    labels: Any,
    folds: int = 5,
    seed: int = 0,
    groups: Tensor | None = None,
) -> Tensor:
    """Calibrate each row with a calibrator fitted on the other folds.

    Args:
        build: Returns a new, unfitted calibrator.
        logits: (N, K); see ``Calibrator.fit``.
        labels: (N,), whole numbers in [0, K).
        folds: Number of folds, at least 2.
        seed: Determines the folds.
        groups: The group number of each row, (N,), int64, such as a pixel's image; the rows of a
            group are in the same fold. None if rows are independent.

    Returns:
        Log-probabilities (N, K), in the order of the rows.

    Raises:
        InputError: If there are fewer rows (or groups) than folds, or ``fit`` would reject the
            rows.
        ValueError: If ``folds`` is below 2.
    """
    rows, targets = check_rows(logits, labels)
    out = torch.empty_like(rows)
    for calibrator, held_out in fold_calibrators(build, rows, targets, folds, seed, groups):
        out[held_out] = calibrator(rows[held_out])
    return out


def fold_calibrators(
    build: Callable[[], Calibrator],
    logits: Any,
    labels: Any,
    folds: int = 5,
    seed: int = 0,
    groups: Tensor | None = None,
) -> Iterator[tuple[Calibrator, Tensor]]:
    """Yield a calibrator fitted on the other folds, and the fold's row numbers, for each fold.

    Use it instead of ``cross_fit`` if the results do not fit into memory; arguments and errors are
    the same.
    """
    rows, targets = check_rows(logits, labels)
    parts = check_count("folds", folds, 2)
    units, place = (targets, None) if groups is None else groups.unique(return_inverse=True)
    if len(units) < parts:
        what = "rows" if groups is None else "groups of rows"
        raise InputError(f"folds={parts} needs at least as many {what}, got {len(units)}")
    fold = stratified_folds(units if place is None else torch.zeros_like(units), parts, seed)
    fold = fold if place is None else fold[place].to(targets.device)
    for index in range(parts):
        others = fold != index
        yield build().fit(rows[others], targets[others]), (~others).nonzero().squeeze(1)


def nll_after_ts_terms(logits: Any, labels: Any) -> Tensor:
    """Return each row's NLL after a temperature fitted on other rows.

    Berta, Holzmüller, Jordan and Bach, Rethinking Early Stopping: Refine, Then Calibrate
    (arXiv:2501.19195, 2025): a proper score is calibration error plus refinement error. Calibration
    can be corrected afterwards, so epochs and hyper-parameters are chosen by the loss after this
    correction. The temperatures are cross-fitted with five folds of a fixed seed. Use the result if
    a recipe ends in a calibrator; it does not measure the calibration of an uncalibrated network.

    Args:
        logits: (N, K), unnormalised or log-probabilities, N at least 5.
        labels: (N,), whole numbers in [0, K).

    Returns:
        Terms (N,), float64, nats.
    """
    rows, targets = check_rows(logits, labels)
    with warnings.catch_warnings():
        # In early epochs the best temperature is often on a bound, which is not a problem.
        warnings.simplefilter("ignore", FitWarning)
        log_probs = cross_fit(lambda: build_calibrator("ts"), rows.double(), targets)
    return -log_probs.gather(1, targets[:, None]).squeeze(1).to(torch.float64)


def stratified_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """Return the fold of each row, (N,): rows are shuffled and assigned in turn, class by class.

    Each class continues with the fold after the previous class's last one. So every class is spread
    as evenly as possible, fold sizes differ by at most one, and classes may have fewer rows than
    there are folds.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order.to(labels.device)
    by_class = order[torch.argsort(labels[order], stable=True)]
    fold = torch.empty_like(labels)
    fold[by_class] = torch.arange(len(labels), device=labels.device) % folds
    return fold
