"""Builds the data for the templates of test rows."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.results import cells_of, usual_baseline
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.tables.figures import percent
from orchestrator.view import map_picture
from orchestrator.view.server._inputs import InputBook, Shown, StoredInputs
from orchestrator.view.server._requests import Selection, choice, within
from orchestrator.view.server._rows import (
    BINS,
    SHOWS,
    SORTS,
    CellRows,
    DamagedError,
    RowBook,
    RowScores,
    largest_first,
)
from trainables.charts.reliability import reliability_diagram
from trainables.common.errors import InputError
from trainables.common.paths import sweep_command
from trainables.metrics import ReliabilityCurve

T = TypeVar("T")
LISTED = 50  # Rows on one page.
SAME = 1e-5  # Maximum difference between the ECEs that two devices compute from one file.


class Line(NamedTuple):
    """One row of a list; ``other`` is the prediction of a second recipe, if there is one."""

    ours: RowScores
    other: RowScores | None
    shown: Shown


class Measured(NamedTuple):
    """The trials of a sweep that were measured on test data, with their studies."""

    folder: SweepFolder
    tasks: list[str]
    cells: list[tuple[Study, Trial]]
    baseline: str

    @classmethod
    def of(cls, folder: SweepFolder, ledger: Ledger) -> "Measured":
        """Return the measured trials in a journal."""
        tasks = list(dict.fromkeys(study.task for study in ledger.studies.values()))
        cells = [cell for cell in cells_of(ledger) if cell[1].predictions]
        return cls(folder, tasks, cells, usual_baseline(ledger.studies.values()))

    def trials(self, study: Study) -> dict[int, Trial]:
        """Return the measured trials of a study, by seed."""
        return {trial.seed: trial for own, trial in self.cells if own.name == study.name}

    def others(self, study: Study, seed: int) -> dict[str, tuple[Study, Trial]]:
        """Return the other recipes on the same task and seed, the baseline first."""
        others = {
            own.recipe: (own, trial)
            for own, trial in self.cells
            if (own.task, trial.seed) == (study.task, seed) and own.name != study.name
        }
        return dict(sorted(others.items(), key=lambda each: each[0] != self.baseline))

    def remedy(self, effect: str) -> str:
        """Return the command that restores missing files, and its effect."""
        return f"`{sweep_command('run --resume', self.folder.path)}` {effect} again."

    def gone(self, study: Study, seed: int) -> str:
        """Return the message about missing predictions."""
        cell = f"{study.recipe} on {study.task}, seed {seed}"
        computes = self.remedy("computes them")
        return f"The predictions of {cell}, are not in this storage; {computes}"

    def without_data(self, task: str) -> str:
        """Return the message about missing data."""
        return (
            f"The prepared data of {task} are damaged or not in this storage, so inputs and names "
            f"of classes are missing; {self.remedy('prepares them')}"
        )


class RowPages:
    """Fills the pages of test rows with predictions and data of a storage."""

    def __init__(self, storage: Storage) -> None:
        self._predictions, self._inputs = RowBook(storage), InputBook(storage)
        self._lacks = storage.lacks

    def rows(self, sweep: Measured, study: Study, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the content of a page of test rows: bins of a study and seed, and some rows."""
        ours = sweep.trials(study)
        if not ours:
            raise HTTPException(
                404,
                f"{study.recipe} on {study.task} has no test rows yet: test data are sealed until "
                "its chosen configuration is measured on them.",
            )
        selection = Selection.read(query, ours)
        rows, problem = _try_read(self._predictions.read, sweep, study, ours[selection.seed])
        if rows is None:
            raise HTTPException(404, problem)
        others = sweep.others(study, selection.seed)
        selection, other, problem = self._next_to(sweep, study, selection, others, rows)
        inputs, missing = self._data(sweep, study, rows)
        show = cache(inputs.show) if inputs else lambda place: Shown()  # Pixels share images.
        within("class", selection.label, range(rows.classes))
        places, count = _part(rows, other, selection)
        lines = []
        for place in places.tolist():
            scores = rows.at(place)
            shown = show(place if scores.image is None else scores.image)
            lines.append(Line(scores, other.at(place) if other else None, shown))
        return {
            "study": study,
            "selection": selection,
            "task": sweep.tasks.index(study.task),
            # No arrays of all rows: the template's context lives until Python's garbage collection.
            "total": len(rows),
            "classes": rows.classes,
            "accuracy": rows.right.mean(),
            "error": rows.curve.error,
            "bins": _bins(rows.curve),
            "diagram": reliability_diagram(
                rows.curve, addresses=[f"{selection.to(bin=each)}#rows" for each in range(BINS)]
            ),
            "lines": lines,
            "names": inputs.info.classes if inputs else (),
            "count": count,
            "pages": max(1, math.ceil(count / LISTED)),
            "seeds": list(ours),
            "others": list(others),
            "shows": SHOWS,
            "sorts": SORTS if other is not None else SORTS[:2],
            "problems": [*filter(None, (problem, missing)), *_doubts(rows, ours[selection.seed])],
        }

    def _next_to(
        self,
        sweep: Measured,
        study: Study,
        selection: Selection,
        others: Mapping[str, tuple[Study, Trial]],
        rows: CellRows,
    ) -> tuple[Selection, CellRows | None, str]:
        """Return the selection with the second recipe, its rows, and why they cannot be shown.

        By default the second recipe is the first of ``others``.
        """
        recipe = choice("with", selection.other or next(iter(others), ""), others or ("",))
        second, problem = None, ""
        if recipe:
            second, problem = _try_read(self._predictions.read, sweep, *others[recipe])
        if second is not None and not second.same_rows(rows):
            second, problem = None, f"{recipe} was tested on other rows, so it is not shown."
        if second is None and selection.sort == SORTS[2]:
            text = "sort='disagreement' needs the predictions of a second recipe."
            raise HTTPException(404, problem or text)
        return selection._replace(other=recipe if second is not None else ""), second, problem

    def _data(
        self, sweep: Measured, study: Study, rows: CellRows
    ) -> tuple[StoredInputs | None, str]:
        """Return the data of a study, or why they are not shown."""
        inputs = self._inputs.find(study.fingerprint)
        if inputs is None:
            return None, self._lacks or sweep.without_data(study.task)
        whole = rows.images is None and rows.numbers is None
        if whole and not np.array_equal(inputs.rows.labels, rows.labels):
            return None, f"The stored data of {study.task} have other labels than the predictions."
        return inputs, ""

    def row(self, sweep: Measured, task: int, number: int) -> dict[str, Any]:
        """Return the content of a row's page: the predictions of all measured recipes and seeds."""
        if task >= len(sweep.tasks):
            raise HTTPException(404, f"This sweep has no task {task}.")
        measured = [cell for cell in sweep.cells if cell[0].task == sweep.tasks[task]]
        read = partial(self._predictions.row, number=number)
        outcomes = [_try_read(read, sweep, *cell) for cell in measured]
        predictions = [scores for scores, _ in outcomes]
        problems = [text for _, text in outcomes if text]
        known = next(filter(None, predictions), None)
        if known is None:
            absent = f"The predictions of {sweep.tasks[task]} have no row {number}."
            raise HTTPException(404, next(iter(problems), absent))
        inputs = self._inputs.find(measured[0][0].fingerprint)
        place = number if known.image is None else known.image
        if inputs and known.image is None and not inputs.holds(place, known.label):
            inputs = None
        missing = [] if inputs else [self._lacks or sweep.without_data(sweep.tasks[task])]
        values = inputs.rows.values[place] if inputs and known.image is not None else None
        return {
            "task": sweep.tasks[task],
            "row": known,
            "shown": inputs.show(place, large=True) if inputs else None,
            "problems": problems + missing,
            "names": inputs.info.classes if inputs else (),
            "cells": list(zip(measured, predictions, strict=True)),
            "maps": [] if values is None else list(self._maps(measured, values)),
        }

    def _maps(
        self, measured: Sequence[tuple[Study, Trial]], values: NDArray[Any]
    ) -> Iterator[tuple[Study, Trial, str]]:
        """Yield study, trial and picture for each trial that stored maps of this image."""
        for study, trial in measured:
            kept = self._predictions.maps(trial.predictions)
            same = [row for row, each in enumerate(kept["rows"]) if np.array_equal(each, values)]
            if same:
                yield study, trial, map_picture(kept, same[:1])


def _try_read(
    read: Callable[[str], T], sweep: Measured, study: Study, trial: Trial
) -> tuple[T | None, str]:
    """Return the result of ``read`` for a trial's predictions, or why they cannot be read."""
    try:
        return read(trial.predictions), ""
    except FileNotFoundError:
        return None, sweep.gone(study, trial.seed)
    except DamagedError as error:
        return None, f"{error}; {sweep.remedy('computes it')}"
    except InputError as error:
        return None, str(error)


def _bins(curve: ReliabilityCurve) -> list[tuple[float, ...]]:
    """Return both ends, count, share, confidence and accuracy of each bin."""
    share = curve.count / curve.count.sum()
    ends = (curve.edges[:-1], curve.edges[1:])
    columns = (*ends, curve.count, share, curve.confidence, curve.accuracy)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _part(
    rows: CellRows, other: CellRows | None, selection: Selection
) -> tuple[NDArray[np.int64], int]:
    """Return the positions of the rows on a page, and the number of rows on all pages."""
    places = rows.chosen(selection.show, selection.bin, selection.label)
    pages = max(1, math.ceil(len(places) / LISTED))
    within("page", selection.page, range(1, pages + 1))
    start, stop = (selection.page - 1) * LISTED, selection.page * LISTED
    if selection.sort == SORTS[0]:
        return places[start:stop], len(places)
    values = rows.confidence
    if selection.sort == SORTS[2]:
        assert other is not None
        values = np.abs(rows.true - other.true)
    return largest_first(places, values, start, stop), len(places)


def _doubts(rows: CellRows, trial: Trial) -> list[str]:
    """Return why the ECE of the rows differs, or may differ, from the table's; else empty."""
    known = trial.test.get("ece")
    if rows.images is not None:
        return ["These rows are a sample of the pixels behind the table's figures."]
    if known is None or abs(known - rows.curve.error) < SAME:
        return []
    ours, theirs = percent(rows.curve.error, 4), percent(known, 4)
    return [
        f"ECE of these rows is {ours} %, in the table {theirs} %: "
        "the stored predictions are not those of the table."
    ]
