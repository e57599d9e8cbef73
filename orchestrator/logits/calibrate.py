"""Post-hoc calibration of files of logits: fit, score other rows, tabulate, save."""

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from orchestrator.logits.files import make_folder, parse_rows, write_whole
from orchestrator.logits.progress import shown_recipes
from orchestrator.logits.scoring import pieces, score, score_pieces
from trainables.calibrators import (
    CALIBRATORS,
    OBJECTIVES,
    Calibrator,
    FitWarning,
    build_calibrator,
    fold_calibrators,
    save_calibrator,
)
from trainables.common.errors import InputError, known_names
from trainables.data import DataNote, LogitFile, LogitRows, RowArrays, count_copies

BASE = "ce"
UNCALIBRATED = "uncalibrated"
AVERAGE = "average"


@dataclass(frozen=True)
class Task:
    """One set of logits to calibrate.

    Attributes:
        judge: Rows to score.
        fit: Rows to fit on; with None, each fold of ``judge`` is scored by calibrators fitted on
            the other folds.
    """

    name: str
    judge: LogitRows
    fit: LogitRows | None = None


@dataclass(frozen=True)
class CalibrationCell:
    """The figures of one calibrator on one task, as fractions.

    Attributes:
        ece: Expected calibration error of the scored rows, in [0, 1].
        accuracy: Accuracy of the scored rows, in [0, 1].
        nll: Mean negative log-likelihood of the scored rows, in nats.
        gain: ECE with the objective ``ce`` minus this ECE: positive is better; None for ``ce``
            itself, if either is missing, and for calibrators without an objective.
        note: The reason why figures are missing (nan), or a doubt about the fit.
    """

    ece: float
    accuracy: float
    nll: float
    gain: float | None = None
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class CalibrationTable:
    """Cells by row and column, as in Table 1 of the class-wise loss scaling paper.

    Columns are tasks; rows are pairs of calibrator and objective (empty for none).
    """

    columns: list[str]
    rows: list[tuple[str, str]]
    cells: list[list[CalibrationCell]]

    def cell(self, column: str, calibrator: str, objective: str = "") -> CalibrationCell:
        """Return the cell of a task (``column``), calibrator and objective."""
        return self.cells[self.rows.index((calibrator, objective))][self.columns.index(column)]

    def lines(self) -> list[str]:
        """Return the table as lines of Markdown; ECE and accuracy in percent."""
        many = len(self.columns) > 1
        heads = ["calibrator", "objective", *self.columns, *([AVERAGE] if many else [])]
        body = []
        for names, cells in zip(self.rows, self.cells, strict=True):
            shown = [*cells, *([average_cell(cells)] if many else [])]
            body.append([*names, *map(show_cell, shown)])
        return markdown(heads, body)

    def notes(self) -> list[str]:
        """Return one line for each cell with a note."""
        return [
            f"* {_join(*row)} on {task}: {cell.note}"
            for row, task, cell in self._entries()
            if cell.note
        ]

    def to_json(self) -> str:
        """Return every figure, unrounded, as JSON."""
        entries = [
            {"task": task, "calibrator": row[0], "objective": row[1], **_finite(cell)}
            for row, task, cell in self._entries()
        ]
        return json.dumps(entries, indent=2, allow_nan=False)

    def _entries(self) -> Iterator[tuple[tuple[str, str], str, CalibrationCell]]:
        for row, cells in zip(self.rows, self.cells, strict=True):
            for task, cell in zip(self.columns, cells, strict=True):
                yield row, task, cell


def check_names(calibrators: Sequence[str], objectives: Sequence[str]) -> None:
    """Refuse unknown or repeated names and empty lists, before anything is read."""
    for what, names, catalogue in (
        ("calibrator", calibrators, CALIBRATORS),
        ("objective", objectives, OBJECTIVES),
    ):
        known, word = catalogue.names(), catalogue.word
        if not names:
            raise InputError(f"{what}s: expected at least one, got none; use {', '.join(known)}")
        for name in names:
            if name not in known:
                raise InputError(f"unknown {what} {name!r}; {known_names(name, known, word)}")
            if list(names).count(name) > 1:
                raise InputError(f"{what}s: expected each once, got {name!r} twice")


def plan_task(
    file: LogitFile, fit_rows: str | None = None, fit_file: LogitFile | None = None
) -> Task:
    """Return the rows to fit on and the rows to score, which never overlap.

    A warning counts the rows to score that are copies of rows to fit on. Raise ``InputError`` if
    this holds for the whole part, see ``Copies.whole``.

    Args:
        file: The logits. By default, a pickled pair is fitted on its first part and scored on its
            second part, and other files are cross-fitted (``Task.fit`` is None).
        fit_rows: Rows to fit on, such as ``0:5000``; all others are scored.
        fit_file: Another file to fit on; all rows of ``file`` are scored. If its number of classes
            differs, only calibrators that transfer get figures.
    """
    if fit_rows is not None and fit_file is not None:
        raise InputError("expected either rows or a file to fit on, got both")
    task = _task(file, fit_rows, fit_file)
    if task.fit is not None and task.fit.logits.shape[1] == task.judge.logits.shape[1]:
        _look_for_copies(file.name, task.fit, task.judge)
    return task


def _look_for_copies(name: str, fit: LogitRows, judge: LogitRows) -> None:
    """Warn of rows to score that are copies of rows to fit on; refuse them if ``Copies.whole``."""
    parts = {"train": fit, "validation": fit.take(slice(0)), "test": judge}
    copies = count_copies(
        {name: RowArrays(r.logits.float().numpy(), r.labels.numpy()) for name, r in parts.items()}
    )
    counts = f"{copies.test:,} of {copies.test_rows:,} rows to score are copies of rows to fit on"
    if copies.whole:
        raise InputError(f"{name}: {counts}; use other rows to score or to fit on")
    if copies.test:
        text = f"{name}: {counts}, so results of calibrators may be too good"
        warnings.warn(text, DataNote, stacklevel=3)


def _task(file: LogitFile, fit_rows: str | None, fit_file: LogitFile | None) -> Task:
    if fit_file is not None:
        if file.rows.logits.shape[1] == fit_file.rows.logits.shape[1]:
            check_same_classes(fit_file.name, fit_file.classes, file.name, file.classes)
        return Task(file.name, file.rows, fit_file.fit or fit_file.rows)
    if fit_rows is None:
        return Task(file.name, file.rows, file.fit)
    chosen = parse_rows(fit_rows, len(file.rows))
    ends = (slice(0, chosen.start), slice(chosen.stop, None))
    others = [part for part in map(file.rows.take, ends) if len(part)]
    if not others:
        raise InputError(
            f"rows {chosen.start}:{chosen.stop}: expected a part of the {len(file.rows)} rows, "
            "got all; the other rows are scored"
        )
    if len(others) == 1:  # This is a view; joining two parts makes a copy.
        return Task(file.name, others[0], file.rows.take(chosen))
    logits, labels = (torch.cat([getattr(o, n) for o in others]) for n in ("logits", "labels"))
    return Task(file.name, LogitRows(logits, labels), file.rows.take(chosen))


def check_same_classes(
    name: str, classes: Sequence[str], other: str, others: Sequence[str]
) -> None:
    """Refuse two files whose classes have different names or another order."""
    for number, (one, two) in enumerate(zip(classes, others, strict=False)):
        if one != two:
            raise InputError(
                f"{name}: class {number} is {one!r}, but {two!r} in {other}; bring the columns "
                "into the same order"
            )


def calibrate_table(
    tasks: Sequence[Task],
    calibrators: Sequence[str] = ("ts", "ets", "pts", "cts"),
    objectives: Sequence[str] = ("ce", "ls", "fl", "cls"),
    bins: int = 15,
    out: str | Path | None = None,
    console: Console | None = None,
) -> CalibrationTable:
    """Fit every calibrator with every objective on every task, and score other rows.

    Calibrators without an objective have one row. A fit that is impossible on the rows (such as an
    accuracy out of reach) gives an empty cell with the reason.

    Args:
        tasks: The tasks, with different names.
        calibrators: Names from ``CALIBRATORS``.
        objectives: Names from ``OBJECTIVES``.
        bins: Equal-width bins of the ECE, at least 1.
        out: Folder for the fitted calibrators, by task and recipe; with cross-fitting, the saved
            calibrator is fitted on all rows.
        console: Shows progress if it takes more than two seconds; None for no progress.
    """
    check_names(calibrators, objectives)
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise InputError(f"tasks: expected different names, got {', '.join(names) or 'none'}")
    recipes, folder = _recipes(calibrators, objectives), None if out is None else make_folder(out)
    with shown_recipes(console, len(tasks) * len(recipes)) as begin:
        columns = [_column(task, recipes, bins, folder, begin) for task in tasks]
    rows = list(columns[0])
    cells = [[column[row] for column in columns] for row in rows]
    return CalibrationTable(names, rows, cells)


def save_table(table: CalibrationTable, folder: Path) -> None:
    """Write a table as ``table.md`` and, unrounded, as ``table.json``."""
    shown = "".join(f"{line}\n" for line in table.lines()).encode()
    figures = f"{table.to_json()}\n".encode()
    write_whole(folder / "table.md", lambda stream: stream.write(shown))
    write_whole(folder / "table.json", lambda stream: stream.write(figures))


def _recipes(calibrators: Sequence[str], objectives: Sequence[str]) -> list[tuple[str, str]]:
    """Return every pair of calibrator and objective; the objective may be empty."""
    return [
        (name, objective)
        for name in calibrators
        for objective in (objectives if CALIBRATORS.get(name).takes_objective else ("",))
    ]


def _column(
    task: Task,
    recipes: Sequence[tuple[str, str]],
    bins: int,
    out: Path | None,
    begin: Callable[[str], None],
) -> dict[tuple[str, str], CalibrationCell]:
    start = time.perf_counter()
    figures = score(task.judge.logits, task.judge.labels, bins)
    seconds = time.perf_counter() - start
    cells = {(UNCALIBRATED, ""): CalibrationCell(*figures, seconds=seconds)}
    for name, objective in recipes:
        begin(f"{_join(name, objective)} on {task.name}")
        cells[name, objective] = _fitted_cell(task, name, objective, bins, out)
    objectives = dict.fromkeys(objective for _, objective in recipes if objective)
    if len({name for name, objective in recipes if objective}) > 1:
        for objective in objectives:
            same = [cells[name, other] for name, other in recipes if other == objective]
            cells[AVERAGE, objective] = average_cell(same)
    for (name, objective), cell in cells.items():
        base = cells.get((name, BASE))
        if base and objective != BASE and np.isfinite(base.ece - cell.ece):
            cells[name, objective] = replace(cell, gain=base.ece - cell.ece)
    return cells


def _join(name: str, objective: str) -> str:
    return f"{name}-{objective}" if objective else name


def _fitted_cell(
    task: Task, name: str, objective: str, bins: int, out: Path | None
) -> CalibrationCell:
    start = time.perf_counter()
    fitted: list[Calibrator] = []
    build = partial(build_calibrator, name, objective or None)
    try:
        with warnings.catch_warnings():  # The doubts about fits are in the table.
            warnings.simplefilter("ignore", FitWarning)
            figures = score_pieces(_calibrated(task, build, fitted), bins)
            whole = None if out is None else fitted[0]
            if whole is not None and task.fit is None:
                whole = build().fit(task.judge.logits, task.judge.labels)
    except InputError as error:
        nan = float("nan")
        return CalibrationCell(nan, nan, nan, note=str(error))
    if out is not None and whole is not None:
        save_calibrator(whole, out / task.name / _join(name, objective))
    reports = (calibrator.report for calibrator in fitted)
    doubts = (report.doubt for report in reports if report is not None and report.doubt)
    seconds = time.perf_counter() - start
    return CalibrationCell(*figures, seconds=seconds, note=next(doubts, ""))


def _calibrated(
    task: Task, build: Callable[[], Calibrator], fitted: list[Calibrator]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield calibrated log-probabilities and labels in pieces; append calibrators to ``fitted``.

    No row is calibrated by a calibrator that was fitted on it.
    """
    logits, labels = task.judge.logits, task.judge.labels
    if task.fit is None:
        fits = fold_calibrators(build, logits, labels)
    else:
        whole = build().fit(task.fit.logits, task.fit.labels)
        fits = iter([(whole, torch.arange(len(logits)))])
    for calibrator, rows in fits:
        fitted.append(calibrator)
        for some in pieces(rows, logits.shape[1]):
            yield calibrator(logits[some]), labels[some]


def average_cell(cells: Iterable[CalibrationCell]) -> CalibrationCell:
    """Return the mean of cells and their total seconds; nan if one of them has no figures."""
    given = list(cells)
    gains = [cell.gain for cell in given if cell.gain is not None]
    ece, accuracy, nll = (
        float(np.mean([getattr(c, figure) for c in given])) for figure in ("ece", "accuracy", "nll")
    )
    gain = float(np.mean(gains)) if len(gains) == len(given) else None
    return CalibrationCell(ece, accuracy, nll, gain, sum(c.seconds for c in given))


def show_cell(cell: CalibrationCell) -> str:
    """Return ``ECE (accuracy) gain`` in percent, with ``*`` for a note; a dash without figures."""
    if not np.isfinite(cell.ece):
        return "-"
    gain = "" if cell.gain is None else f" {100 * cell.gain:+.2f}"
    mark = " *" if cell.note else ""
    return f"{100 * cell.ece:.2f} ({100 * cell.accuracy:.2f}){gain}{mark}"


def markdown(heads: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return an aligned Markdown table."""
    widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
    lines = [heads, ["-" * width for width in widths], *body]
    return [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]


def _finite(cell: CalibrationCell) -> dict[str, float | str | None]:
    return {
        key: None if isinstance(value, float) and not np.isfinite(value) else value
        for key, value in vars(cell).items()
    }
