"""Post-hoc calibration of a file of logits: fit, judge on other rows, tabulate, save, apply."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from orchestrator._recipe_progress import shown_recipes
from orchestrator.logit_files import LogitFile, LogitRows, parse_rows
from trainables.calibrators import (
    CALIBRATORS,
    OBJECTIVES,
    Calibrator,
    build_calibrator,
    fold_calibrators,
    load_calibrator,
    save_calibrator,
)
from trainables.errors import InputError
from trainables.metrics import reliability_curve
from trainables.paths import local_path

__all__ = [
    "CalibrationCell",
    "CalibrationTable",
    "Task",
    "apply_calibrator",
    "calibrate_table",
    "check_names",
    "make_folder",
    "plan_task",
    "save_log_probs",
    "save_table",
    "score",
]

BASE = "ce"
UNCALIBRATED = "uncalibrated"
AVERAGE = "average"
VALUES_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class Task:
    """One set of logits to calibrate.

    Attributes:
        name: Heading of its column.
        judge: Rows that are scored.
        fit: Rows that calibrators are fitted on; None scores every row of ``judge`` by calibrators
            fitted on the other folds of it.
    """

    name: str
    judge: LogitRows
    fit: LogitRows | None = None


@dataclass(frozen=True)
class CalibrationCell:
    """What one calibrator does to one task; fractions.

    Attributes:
        ece: Expected calibration error of the scored rows, in [0, 1].
        accuracy: Their accuracy, in [0, 1].
        nll: Their mean negative log-likelihood, in nats.
        gain: ECE with the objective ``ce`` minus this one: positive is better; None for ``ce``
            itself and where there is no choice of objective.
        seconds: Time of fitting and scoring.
        note: Why there are no figures (then they are nan), or what the fit reports.
    """

    ece: float
    accuracy: float
    nll: float
    gain: float | None = None
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class CalibrationTable:
    """All cells, in the layout of the class-wise loss scaling paper's Table 1.

    Attributes:
        columns: Names of the tasks.
        rows: Calibrator and objective of each row; the objective is empty where there is none.
        cells: One list a row, one cell a column.
    """

    columns: list[str]
    rows: list[tuple[str, str]]
    cells: list[list[CalibrationCell]]

    def cell(self, column: str, calibrator: str, objective: str = "") -> CalibrationCell:
        """Return one cell."""
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
        """Return one line for each cell that says something about its fit."""
        return [
            f"* {'-'.join(filter(None, row))} on {task}: {cell.note}"
            for row, cells in zip(self.rows, self.cells, strict=True)
            for task, cell in zip(self.columns, cells, strict=True)
            if cell.note
        ]

    def to_json(self) -> str:
        """Return every figure, unrounded, as JSON."""
        entries = [
            {"task": task, "calibrator": row[0], "objective": row[1], **_finite(cell)}
            for row, cells in zip(self.rows, self.cells, strict=True)
            for task, cell in zip(self.columns, cells, strict=True)
        ]
        return json.dumps(entries, indent=2, allow_nan=False)


def check_names(calibrators: Sequence[str], objectives: Sequence[str]) -> None:
    """Refuse unknown or repeated names before anything is read.

    Raises:
        InputError: If a name is unknown or given twice; the text lists what exists.
    """
    for what, names, known in (
        ("calibrator", calibrators, CALIBRATORS.names()),
        ("objective", objectives, OBJECTIVES.names()),
    ):
        if not names:
            raise InputError(f"no {what} given; there are: {', '.join(known)}")
        for name in names:
            if name not in known:
                raise InputError(f"unknown {what} {name!r}; there are: {', '.join(known)}")
            if list(names).count(name) > 1:
                raise InputError(f"{what} {name!r} is given twice")


def plan_task(
    file: LogitFile, fit_rows: str | None = None, fit_file: LogitFile | None = None
) -> Task:
    """Decide which rows a calibrator is fitted on and which are scored; they never overlap.

    Args:
        file: The logits. A pickled pair fits on its first part and scores its second.
        fit_rows: Rows to fit on, such as ``0:5000``; all others are scored.
        fit_file: Another file to fit on; all rows of ``file`` are scored.

    Raises:
        InputError: If both are given, or no row is left to score, or the classes differ.
    """
    if fit_rows is not None and fit_file is not None:
        raise InputError("give either rows to fit on or a file to fit on, not both")
    if fit_file is not None:
        wanted, given = file.rows.logits.shape[1], fit_file.rows.logits.shape[1]
        if wanted != given:
            raise InputError(f"{fit_file.name}: {given} classes, but {file.name} has {wanted}")
        return Task(file.name, file.rows, fit_file.fit or fit_file.rows)
    if fit_rows is None:
        return Task(file.name, file.rows, file.fit)
    chosen = parse_rows(fit_rows, len(file.rows))
    return Task(file.name, _without(file.rows, chosen), file.rows.take(chosen))


def calibrate_table(
    tasks: Sequence[Task],
    calibrators: Sequence[str] = ("ts", "ets", "pts", "cts"),
    objectives: Sequence[str] = ("ce", "ls", "fl", "cls"),
    bins: int = 15,
    out: str | Path | None = None,
    console: Console | None = None,
) -> CalibrationTable:
    """Fit every calibrator with every objective on every task, and score other rows.

    Calibrators that take no objective have one row. A fit that the rows do not allow (such as an
    accuracy out of reach) leaves an empty cell with the reason; wrong names do not.

    Args:
        tasks: What to calibrate; names must differ.
        calibrators: Names from ``CALIBRATORS``.
        objectives: Names from ``OBJECTIVES``.
        bins: Equal-width bins of the ECE, at least 1.
        out: Folder in which the fitted calibrators are saved, under task and recipe; a
            cross-fitted one is fitted on all rows for that.
        console: Where progress is shown if it takes more than two seconds; None for nowhere.

    Raises:
        InputError: If a name is unknown or given twice, or ``out`` cannot be a folder or written.
    """
    check_names(calibrators, objectives)
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise InputError(f"tasks need different names, got {', '.join(names) or 'none'}")
    recipes, folder = _recipes(calibrators, objectives), None if out is None else make_folder(out)
    with shown_recipes(console, len(tasks) * len(recipes)) as begin:
        columns = [_column(task, recipes, bins, folder, begin) for task in tasks]
    rows = list(columns[0])
    cells = [[column[row] for column in columns] for row in rows]
    return CalibrationTable(names, rows, cells)


def apply_calibrator(folder: str | Path, rows: LogitRows) -> Tensor:
    """Return the log-probabilities (N, K) that a saved calibrator gives.

    Raises:
        InputError: If the folder holds no calibrator or a damaged one, or K differs.
    """
    return load_calibrator(folder)(rows.logits)


def make_folder(folder: str | Path) -> Path:
    """Return a folder for results, which is made if need be.

    Raises:
        InputError: If it is a URL, or cannot be made, for instance because a file has its name.
    """
    place = Path(folder)
    local_path(place, "results")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{place}: cannot be a folder for results ({error.strerror})") from error
    return place


def save_log_probs(path: str | Path, log_probs: Tensor, labels: Tensor) -> None:
    """Write log-probabilities as ``logits`` with ``labels``, which ``read_logits`` reads again.

    Raises:
        InputError: If the file cannot be written.
    """
    logits, truth = log_probs.numpy(), labels.numpy()
    _write_whole(Path(path), lambda stream: np.savez(stream, logits=logits, labels=truth))


def save_table(table: CalibrationTable, folder: Path) -> None:
    """Write a table as ``table.md`` and, unrounded, as ``table.json``.

    Raises:
        InputError: If a file cannot be written.
    """
    shown = "".join(f"{line}\n" for line in table.lines()).encode()
    figures = f"{table.to_json()}\n".encode()
    _write_whole(folder / "table.md", lambda stream: stream.write(shown))
    _write_whole(folder / "table.json", lambda stream: stream.write(figures))


def _write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file, or leave what was there."""
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with draft.open("wb") as stream:
            write(stream)
        os.replace(draft, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        draft.unlink(missing_ok=True)


def score(log_probs: Tensor, labels: Tensor, bins: int) -> tuple[float, float, float]:
    """Return ECE, accuracy and NLL of logits or log-probabilities (N, K)."""
    return _score_parts(((log_probs[part], labels[part]) for part in _parts(log_probs)), bins)


def _score_parts(parts: Iterable[tuple[Tensor, Tensor]], bins: int) -> tuple[float, float, float]:
    """Return ECE, accuracy and NLL of log-probabilities and labels that come a few at a time."""
    count, right, confident = np.zeros((3, bins))
    loss = 0.0
    for log_probs, labels in parts:
        curve = reliability_curve(logits=log_probs, labels=labels, bins=bins)
        count += curve.count
        right += np.nan_to_num(curve.accuracy) * curve.count
        confident += np.nan_to_num(curve.confidence) * curve.count
        loss += float(F.cross_entropy(log_probs.double(), labels, reduction="sum"))
    rows = count.sum()
    ece = np.abs(right - confident).sum() / rows
    return float(ece), float(right.sum() / rows), loss / float(rows)


def _parts(rows: Tensor) -> Iterator[slice]:
    """Cut rows (N, K) into slices of which float64 copies are small."""
    step = max(1, VALUES_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        yield slice(start, start + step)


def _recipes(calibrators: Sequence[str], objectives: Sequence[str]) -> list[tuple[str, str]]:
    """Return every pair of calibrator and objective; the latter is empty where there is none."""
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
    cells = {(UNCALIBRATED, ""): _uncalibrated(task.judge, bins)}
    for name, objective in recipes:
        begin(f"{_join(name, objective)} on {task.name}")
        cells[name, objective] = _fitted_cell(task, name, objective, bins, out)
    with_choice = {name for name, objective in recipes if objective}
    if len(with_choice) > 1:
        for objective in dict.fromkeys(o for _, o in recipes if o):
            same = [cells[name, o] for name, o in recipes if o == objective]
            cells[AVERAGE, objective] = average_cell(same)
    return {key: _with_gain(key, cell, cells) for key, cell in cells.items()}


def _join(name: str, objective: str) -> str:
    return f"{name}-{objective}" if objective else name


def _uncalibrated(rows: LogitRows, bins: int) -> CalibrationCell:
    start = time.perf_counter()
    ece, accuracy, nll = score(rows.logits, rows.labels, bins)
    return CalibrationCell(ece, accuracy, nll, seconds=time.perf_counter() - start)


def _fitted_cell(
    task: Task, name: str, objective: str, bins: int, out: Path | None
) -> CalibrationCell:
    start = time.perf_counter()
    fitted: list[Calibrator] = []
    build = partial(build_calibrator, name, objective or None)
    try:
        ece, accuracy, nll = _score_parts(_held_out(task, build, fitted), bins)
        whole = None if out is None else _whole(task, build, fitted)
    except InputError as error:
        nan = float("nan")
        return CalibrationCell(nan, nan, nan, note=str(error))
    if out is not None and whole is not None:
        save_calibrator(whole, out / task.name / _join(name, objective))
    seconds = time.perf_counter() - start
    return CalibrationCell(ece, accuracy, nll, seconds=seconds, note=_trouble(fitted))


def _held_out(
    task: Task, build: Callable[[], Calibrator], fitted: list[Calibrator]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield calibrated rows with their labels, none by a calibrator that was fitted on it.

    The calibrators are appended to ``fitted`` on the way.
    """
    logits, labels = task.judge.logits, task.judge.labels
    if task.fit is None:
        for calibrator, rows in fold_calibrators(build, logits, labels):
            fitted.append(calibrator)
            for some in rows.split(max(1, VALUES_AT_ONCE // logits.shape[1])):
                yield calibrator(logits[some]), labels[some]
    else:
        fitted.append(build().fit(task.fit.logits, task.fit.labels))
        for part in _parts(logits):
            yield fitted[0](logits[part]), labels[part]


def _whole(task: Task, build: Callable[[], Calibrator], fitted: Sequence[Calibrator]) -> Calibrator:
    """Return the calibrator of all fitting rows."""
    return fitted[0] if task.fit is not None else build().fit(task.judge.logits, task.judge.labels)


def _trouble(fitted: Iterable[Calibrator]) -> str:
    """Return what the first fit that did not converge says, or nothing."""
    reports = (calibrator.report for calibrator in fitted)
    notes = (f"not converged: {r.note}" for r in reports if r is not None and not r.converged)
    return next(notes, "")


def average_cell(cells: Iterable[CalibrationCell]) -> CalibrationCell:
    """Return the mean of cells; nan if one of them has no figures."""
    given = list(cells)
    gains = [cell.gain for cell in given if cell.gain is not None]
    ece, accuracy, nll = (
        float(np.mean([getattr(c, figure) for c in given])) for figure in ("ece", "accuracy", "nll")
    )
    gain = float(np.mean(gains)) if len(gains) == len(given) else None
    return CalibrationCell(ece, accuracy, nll, gain, sum(c.seconds for c in given))


def _with_gain(
    key: tuple[str, str],
    cell: CalibrationCell,
    cells: dict[tuple[str, str], CalibrationCell],
) -> CalibrationCell:
    name, objective = key
    base = cells.get((name, BASE))
    if base is None or objective == BASE or not np.isfinite(base.ece - cell.ece):
        return cell
    return replace(cell, gain=base.ece - cell.ece)


def show_cell(cell: CalibrationCell) -> str:
    """Return ``ECE (accuracy) gain`` in percent, or a dash where there are no figures."""
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


def _without(rows: LogitRows, chosen: slice) -> LogitRows:
    """Return the rows outside a slice, as a view where they are in one piece."""
    start, stop = chosen.start, chosen.stop
    if start == 0 and stop == len(rows):
        raise InputError(f"rows {start}:{stop} are all of them; none is left to score")
    if start == 0:
        return rows.take(slice(stop, None))
    if stop == len(rows):
        return rows.take(slice(0, start))
    before, after = rows.take(slice(0, start)), rows.take(slice(stop, None))
    return LogitRows(
        torch.cat([before.logits, after.logits]), torch.cat([before.labels, after.labels])
    )


def _finite(cell: CalibrationCell) -> dict[str, float | str | None]:
    return {
        key: None if isinstance(value, float) and not np.isfinite(value) else value
        for key, value in vars(cell).items()
    }
