"""The part of the page that one task fills: its table and the charts of its recipes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from orchestrator._table import Cell, ComparisonTable, Row, TableColumn
from orchestrator.report._grid import Entry, Grid, Heading, many, number
from orchestrator.report._intervals import interval, reach
from orchestrator.report._panels import reliability_panel, risk_panel
from orchestrator.report._predictions import COMPARED, Measured
from orchestrator.report._scatter import Place, scatter
from orchestrator.report._source import ReportSource
from orchestrator.results import StudyResult
from orchestrator.statistics import TaskComparison
from orchestrator.tables import build_table, column

__all__ = ["Panel", "TaskPart", "task_part"]

METRICS = ("acc", "ece", "ece_floor")
FURTHER = ("debiased_ece", "smooth_ece", "aece", "cwece", "mce", "nll", "brier")
SUITE_METRICS = ("acc", "ece", "auroc", "fpr95")
MOST = 16  # Columns of figures on other test sets.
SIZES = ((880, 430), (328, 380))  # Of the scatter plot, for wide and narrow screens.


@dataclass(frozen=True)
class Panel:
    """One of several small charts side by side."""

    title: str
    text: str
    chart: Markup


@dataclass(frozen=True)
class TaskPart:
    """One task.

    Attributes:
        name: The task.
        lead: What there is to see, in sentences.
        grids: Its tables.
        scatter: Accuracy against ECE, for wide and narrow screens; none with fewer than two.
        reliability: One diagram a recipe.
        risk: One curve a recipe.
        missing: What could not be drawn, and why.
        seeds: Whether there are several seeds.
    """

    name: str
    lead: Sequence[str]
    grids: Sequence[Grid]
    scatter: Sequence[Markup]
    reliability: Sequence[Panel]
    risk: Sequence[Panel]
    missing: Sequence[str]
    seeds: bool


def task_part(
    source: ReportSource, task: str, number_: int, measured: Measured, baseline: str
) -> TaskPart:
    """Put the part of one task together.

    Args:
        source: The sweep.
        task: The task.
        number_: Counts the tasks.
        measured: What was computed from its predictions.
        baseline: The recipe that others are compared with.
    """
    results = [result for result in source.results if result.task == task]
    table = build_table(results, _known(results, METRICS))
    grids = [_main_grid(table, measured, f"table-{number_}", baseline)]
    if further := _known(results, FURTHER):
        caption = f"Other measures of the same configurations, {task}"
        grids.append(_plain_grid(build_table(results, further), f"more-{number_}", caption))
    if suites := _suites(results):
        caption = f"The same configurations on other test sets, {task}"
        grids.append(_plain_grid(build_table(results, suites[:MOST]), f"suites-{number_}", caption))
    left = len(suites) - MOST
    return TaskPart(
        name=task,
        lead=list(_lead(table, measured, baseline)),
        grids=grids,
        scatter=_scatters(source, table, baseline),
        reliability=_reliability(table, measured),
        risk=_risk(table, measured, baseline),
        missing=[*_missing(measured, baseline), *(_left_out(left) if left > 0 else [])],
        seeds=any(len(result.test) > 1 for result in results),
    )


def _known(results: Sequence[StudyResult], metrics: Sequence[str]) -> list[str]:
    """Return the metrics that a result has; accuracy and ECE always."""
    there = {name for result in results for seed in result.test for name in seed}
    return [name for name in metrics if name in there or name in COMPARED]


def _columns(table: ComparisonTable) -> dict[str, TableColumn]:
    return {entry.metrics[0]: entry for entry in table.columns}


def _main_grid(table: ComparisonTable, measured: Measured, name: str, baseline: str) -> Grid:
    reaches = {metric: reach(found) for metric, found in measured.comparisons.items()}
    headings = [Heading("Recipe", numeric=False)]
    for metric, entry in _columns(table).items():
        headings.append(Heading(entry.shown.heading, higher=entry.shown.higher))
        if metric in reaches:
            hint = f"difference from {baseline} in percentage points, with its 95 % interval"
            headings.append(Heading(f"{entry.shown.label} against {baseline}", hint=hint))
    rows = [list(_main_row(table, row, measured, reaches, baseline)) for row in table.rows]
    task = table.tasks[0]
    caption = f"Test figures of the configurations chosen on validation data, {task}"
    return Grid(name, caption, headings, rows, list(_notes(table, measured, baseline)))


def _main_row(
    table: ComparisonTable,
    row: Row,
    measured: Measured,
    reaches: dict[str, float],
    baseline: str,
) -> Iterator[Entry]:
    recipe = row.recipes[0]
    notice = table.notice(row, table.columns[0])
    mark = "baseline" if recipe == baseline else ""
    aside = notice.text if notice else mark or _failed(table.results[recipe, table.tasks[0]])
    yield Entry(row.label, row.label, mark, aside)
    cells = [] if notice else list(table.line(row))
    for position, (metric, entry) in enumerate(_columns(table).items()):
        yield _figure(table, row, entry, cells[position] if cells else None)
        if metric in reaches:
            yield _difference(measured.comparisons[metric], recipe, reaches[metric])


def _failed(result: StudyResult) -> str:
    total = result.trials_finished + result.trials_failed
    return f"{result.trials_failed} of {total} trials failed" if result.trials_failed else ""


def _figure(table: ComparisonTable, row: Row, entry: TableColumn, cell: object) -> Entry:
    found = table.figure(row, entry)
    if found is None or not isinstance(cell, Cell):
        return number("", None)
    deviation = "" if found.std is None else f"±{entry.shown.show(found.std)}"
    return number(entry.shown.show(found.mean), found.mean, cell.mark, deviation)


def _difference(comparison: TaskComparison, recipe: str, limit: float) -> Entry:
    found = comparison.bootstrap.differences.get(recipe)
    if found is None:
        return number("", None)
    shown = column(comparison.bootstrap.metric)
    value, low, high = (
        shown.show_change(end).replace("-", "−") for end in (found.value, found.low, found.high)
    )
    tone = verdict(comparison, recipe)
    sign = "≈ " if comparison.inside_floor(recipe) else ""
    entry = number(sign + value, found.value, tone, f"{low} to {high}")
    return replace(entry, graphic=interval(found, limit, tone))


def verdict(comparison: TaskComparison, recipe: str) -> str:
    """Return ``better``, ``worse`` or, where chance can explain the difference, ``similar``."""
    found = comparison.bootstrap.differences[recipe]
    if not found.excludes_zero or comparison.inside_floor(recipe):
        return "similar"
    higher = column(comparison.bootstrap.metric).higher
    return "better" if (found.value > 0) == higher else "worse"


def _notes(table: ComparisonTable, measured: Measured, baseline: str) -> Iterator[str]:
    yield "Bold is the best figure of a column as printed, underlined the second best."
    if any(len(result.test) > 1 for result in table.results.values()):
        yield "Means over seeds, ± sample standard deviation."
    if "ece_floor" in table.metrics:
        yield (
            "ECE floor: what a perfectly calibrated network with the same confidences would show "
            "on average on these test rows."
        )
    if measured.comparisons:
        bootstrap = measured.comparisons["ece"].bootstrap
        yield (
            f"Differences from {baseline} with 95 % intervals of {bootstrap.draws} paired "
            f"resamples of {bootstrap.rows} test rows, in points: blue is better, orange worse, "
            "grey cannot be told from chance; ≈ a difference not above the noise floor. They say "
            "what other test rows might show, not what other seeds or another search would."
        )


def _suites(results: Sequence[StudyResult]) -> list[str]:
    """Return the metrics of other test sets."""
    names = {name for result in results for seed in result.test for name in seed if "/" in name}
    return sorted(name for name in names if name.rpartition("/")[2] in SUITE_METRICS)


def _left_out(columns: int) -> list[str]:
    return [f"{columns} more columns of other test sets: calsweep table --metrics"]


def _plain_grid(table: ComparisonTable, name: str, caption: str) -> Grid:
    """Return figures alone."""
    headings = [Heading("Recipe", numeric=False)]
    headings += [Heading(e.shown.heading, higher=e.shown.higher) for e in table.columns]
    rows = []
    for row in table.rows:
        notice = table.notice(row, table.columns[0])
        cells = [None] * len(table.columns) if notice else list(table.line(row))
        figures = [_figure(table, row, *pair) for pair in zip(table.columns, cells, strict=True)]
        rows.append([Entry(row.label, row.label), *figures])
    return Grid(name, caption, headings, rows)


def _lead(table: ComparisonTable, measured: Measured, baseline: str) -> Iterator[str]:
    """Yield what there is to see, in sentences."""
    entry = _columns(table)["ece"]
    found = {row.label: table.figure(row, entry) for row in table.rows}
    means = {label: f.mean for label, f in found.items() if f and math.isfinite(f.mean)}
    if not means:
        yield "No recipe has a test figure yet."
        return
    best, show = min(means, key=lambda label: means[label]), entry.shown.show
    beside = ""
    if baseline in means and best != baseline:
        beside = f"; that of {baseline} is {show(means[baseline])} %"
    floor = table.summary(best, table.tasks[0], "ece_floor")
    chance = (
        f" A perfectly calibrated network with the confidences of {best} would show about "
        f"{show(floor.mean)} % on these test rows."
        if floor
        else ""
    )
    yield f"The lowest ECE is that of {best}, {show(means[best])} %{beside}.{chance}"
    if measured.comparisons:
        yield _count(measured.comparisons["ece"], baseline)


def _count(comparison: TaskComparison, baseline: str) -> str:
    verdicts = [verdict(comparison, recipe) for recipe in comparison.bootstrap.differences]
    better, worse, similar = map(verdicts.count, ("better", "worse", "similar"))
    return (
        f"Compared with {baseline}, {_have(better)} a lower ECE beyond chance and {_have(worse)} a "
        f"higher one; {many(similar, 'recipe')} cannot be told from it by these test rows."
    )


def _have(count: int) -> str:
    verb = "has" if count < 2 else "have"
    return f"{many(count, 'recipe') if count else 'no recipe'} {verb}"


def _scatters(source: ReportSource, table: ComparisonTable, baseline: str) -> list[Markup]:
    places = []
    for row in table.rows:
        accuracy, error = (table.figure(row, _columns(table)[name]) for name in COMPARED)
        if accuracy and error and math.isfinite(accuracy.mean + error.mean):
            stage = source.stage(table.results[row.recipes[0], table.tasks[0]])
            places.append(Place(row.label, 100 * accuracy.mean, 100 * error.mean, stage))
    floor = table.summary(baseline, table.tasks[0], "ece_floor")
    shown = None if floor is None else 100 * floor.mean
    return [scatter(places, baseline, shown, size) for size in SIZES] if len(places) > 1 else []


def _reliability(table: ComparisonTable, measured: Measured) -> list[Panel]:
    panels = []
    for row in table.rows:
        curves = measured.curves.get(row.label)
        found = table.summary(row.label, table.tasks[0], "ece")
        if curves and found:
            chart = reliability_panel(curves.reliability, row.label, len(curves.risk))
            panels.append(Panel(row.label, f"ECE {column('ece').show(found.mean)} %", chart))
    return panels


def _risk(table: ComparisonTable, measured: Measured, baseline: str) -> list[Panel]:
    curves = {row.label: measured.curves.get(row.label) for row in table.rows}
    known = {recipe: found for recipe, found in curves.items() if found}
    errors = [float(curve.risk[-1]) for found in known.values() for curve in found.risk]
    highest = 1.1 * max(errors, default=0) or 0.01
    reference = known[baseline].risk if baseline in known else ()
    return [
        Panel(
            recipe,
            f"area {100 * found.area:.2f} %",
            risk_panel(found.risk, () if recipe == baseline else reference, highest, recipe),
        )
        for recipe, found in known.items()
    ]


def _missing(measured: Measured, baseline: str) -> Iterator[str]:
    if measured.problem:
        yield f"No diagrams and no intervals: {measured.problem}"
        return
    for recipe, reason in measured.absent.items():
        yield f"{recipe}: no diagrams and no interval: {reason}"
    if measured.curves and not measured.comparisons:
        yield f"No differences: {baseline} has no predictions here"
