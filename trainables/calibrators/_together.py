"""Several fits on rows of one table: they share checks, folds, passes and common temperatures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trainables.calibrators._base import Calibrator, Fit, FitReport, first_argmax
from trainables.calibrators._checks import check_rows
from trainables.calibrators._crossfit import check_folds, stratified_folds
from trainables.calibrators._groups import TemperatureFit, fit_temperatures
from trainables.calibrators._passes import block_values
from trainables.calibrators.objectives import Objective


class RowSets:
    """Rows, and sets of them that calibrators are fitted on.

    Args:
        logits: (N, K), checked.
        labels: (N,), checked.
        masks: Which rows each of S sets holds, (S, N), bool; one set with all rows if left out.
    """

    def __init__(self, logits: Tensor, labels: Tensor, masks: Tensor | None = None) -> None:
        self.logits, self.labels = logits, labels
        everything = torch.ones_like(labels, dtype=torch.bool).unsqueeze(0)
        self.masks = everything if masks is None else masks

    def of(self, index: int) -> tuple[Tensor, Tensor]:
        """Return logits and labels of a set."""
        if len(self.masks) == 1:
            return self.logits, self.labels
        return self.logits[self.masks[index]], self.labels[self.masks[index]]

    def passes(self, fits: Sequence[Fit[Any]]) -> Iterator[tuple[list[int], RowSets]]:
        """Cut fits into those of a common pass, for families whose passes are nothing but products.

        Few rows cost a pass over all of them hardly more than one over a set; of many, a pass
        leaves out those that do not count, and serves the fits of one set.

        Yields:
            Positions of fits, and the rows of their pass, with one mask for each of them.
        """
        sets = [fit.rows for fit in fits]
        if self.logits.numel() < block_values(self.logits):
            yield list(range(len(fits))), RowSets(self.logits, self.labels, self.masks[sets])
            return
        for index in sorted(set(sets)):
            positions = [position for position, own in enumerate(sets) if own == index]
            logits, labels = self.of(index)
            everything = torch.ones_like(labels, dtype=torch.bool)
            yield positions, RowSets(logits, labels, everything.expand(len(positions), -1))

    @cached_property
    def winners(self) -> Tensor:
        """Return the first class of the largest logit of each row, (N,)."""
        return first_argmax(self.logits)

    def temperatures(
        self, fits: Sequence[Fit[Any]], objectives: Sequence[Objective]
    ) -> list[tuple[Tensor, FitReport]]:
        """Return the best single temperature (1,) of each fit under its objective, and its report.

        Fits of one set under equal objectives share theirs, unless the objective adapts itself.
        """
        keys: list[Hashable] = []
        wanted: dict[Hashable, TemperatureFit] = {}
        for fit, objective in zip(fits, objectives, strict=True):
            own = id(objective) if objective.adaptive else objective.identity()
            keys.append((fit.rows, own))
            wanted[keys[-1]] = TemperatureFit(objective, self.masks[fit.rows])
        one_group = torch.zeros_like(self.labels)
        solved = fit_temperatures(self.logits, self.labels, one_group, 1, list(wanted.values()))
        found = dict(zip(wanted, solved, strict=True))
        return [found[key] for key in keys]


def fit_together(fits: Sequence[Fit[Any]], table: RowSets) -> None:
    """Fit calibrators, each on its set of rows, families that can in common passes."""
    families: dict[Hashable, list[Fit[Any]]] = {}
    for fit in fits:
        key = type(fit.calibrator), fit.calibrator.joins_pass
        families.setdefault(key, []).append(fit)
    with torch.no_grad():
        for family in families.values():
            for fit in family:
                fit.calibrator.num_classes = table.logits.shape[1]
            reports = type(family[0].calibrator)._fit_many(family, table)
            for fit, report in zip(family, reports, strict=True):
                fit.calibrator.report = report


def cross_fit_together(
    builds: Sequence[Callable[[], Calibrator]],
    logits: Any,
    labels: Any,
    folds: int = 5,
    seed: int = 0,
) -> list[tuple[Calibrator, Tensor]]:
    """Fit calibrators on all rows, and score each row by ones that have not seen it.

    All fits, one on all rows and one for each fold of every calibrator, are done together, with the
    outcome of ``build().fit`` and ``cross_fit`` one by one: parameters within 1e-9 for calibrators
    that share their passes (``joins_pass``), and to the last bit for the others, which share
    nothing: a solver that stops near its minimum may end elsewhere when a bit of its start differs.

    Args:
        builds: Each makes a fresh, unfitted calibrator.
        logits: (N, K); see ``Calibrator.fit``.
        labels: (N,), whole numbers in [0, K).
        folds: Number of folds, in [2, N].
        seed: Decides which rows share a fold.

    Returns:
        For each of ``builds`` the calibrator fitted on all rows, and the log-probabilities (N, K)
        of every row by one fitted on the other folds, in the order of the rows.

    Raises:
        InputError: If there are fewer rows than folds, or the rows are not as ``fit`` wants them,
            or do not allow one of the fits.
    """
    rows, targets = check_rows(logits, labels)
    parts = check_folds(folds, len(rows))
    fold = stratified_folds(targets, parts, seed)
    held_out = [fold == index for index in range(parts)]
    masks = torch.stack([torch.ones_like(held_out[0]), *(~held for held in held_out)])
    fitted = [[Fit(build(), index) for index in range(parts + 1)] for build in builds]
    fit_together([fit for own in fitted for fit in own], RowSets(rows, targets, masks))
    return [(own[0].calibrator, _scored(own[1:], rows, held_out)) for own in fitted]


def _scored(fits: Sequence[Fit[Any]], rows: Tensor, held_out: Sequence[Tensor]) -> Tensor:
    out = torch.empty_like(rows)
    for fit, held in zip(fits, held_out, strict=True):
        out[held] = fit.calibrator(rows[held])
    return out
