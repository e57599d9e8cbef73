"""The section of one task on the page: its tables and the charts of its recipes."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from orchestrator.statistics import TaskComparison
from orchestrator.tables.arrange import build_table
from orchestrator.tables.columns import column
from orchestrator.tables.table import ComparisonTable
from orchestrator.view import _panels
from orchestrator.view._maps import confidence_maps
from orchestrator.view._panels import COMPARED, IntervalBar, Measured
from orchestrator.view._scatter import Place, scatter
from orchestrator.view._source import ReportSource
from trainables.charts.chart import Chart
from trainables.charts.reliability import reliability_diagram
from trainables.common.words import many

METRICS = ("acc", "ece", "ece_floor")
FURTHER = ("debiased_ece", "smooth_ece", "aece", "cwece", "mce", "nll", "brier")
SUITE_METRICS = ("acc", "ece", "auroc", "fpr95")
MOST = 16  # Maximum number of columns for other test sets.


class Shift(NamedTuple):
    """The table cell that shows a difference from the baseline or from the published default.

    Attributes:
        text, value: The difference, as text and as a fraction.
        tone: ``better``, ``worse`` or, if chance can explain the difference, ``similar``.
        ends, bar: The interval of the difference, as text and as a drawing, if there is one.
    """

    text: str
    value: float
    tone: str
    ends: str
    bar: IntervalBar | None


KEPT = Shift("the default was chosen", 0.0, "similar", "", None)


def task_part(
    source: ReportSource, task: str, measured: Measured | None, baseline: str
) -> dict[str, Any]:
    """Return the content of one task's section; without ``measured`` the store is not read."""
    maps = confidence_maps(source.of_task(task), source.store) if measured else []
    measured = measured or Measured()
    results = [result for result in source.results if result.task == task]
    known = {name for result in results for seed in result.test for name in seed}
    table = build_table(results, [name for name in METRICS if name in {*known, *COMPARED}])
    suites = sorted(n for n in known if "/" in n and n.rpartition("/")[2] in SUITE_METRICS)
    own = dict.fromkeys(name for result in results for name in result.metrics)
    further = {
        "Other measures of the same configurations": [n for n in (*FURTHER, *own) if n in known],
        "The same configurations on other test sets": suites[:MOST],
    }
    compared, gains = measured.comparisons.get("ece"), measured.gains.get("ece")
    kept = {r.recipe: KEPT for r in results if r.kept_default}
    gained = [r for r in results if gains and r.recipe in gains.bootstrap.differences]
    return {
        "name": task,
        "lead": list(_lead(table, measured, baseline)),
        "table": table,
        "shifts": {metric: _shifts(found) for metric, found in measured.comparisons.items()},
        "gains": {metric: {**_shifts(g), **kept} for metric, g in measured.gains.items()},
        "gained": build_table(gained, COMPARED) if gained else None,
        "bootstrap": compared.bootstrap if compared else None,
        "further": [(name, build_table(results, own)) for name, own in further.items() if own],
        "scatter": _scatter(source, table, baseline),
        "reliability": _reliability(table, measured),
        "risk": _risk(table, measured, baseline),
        "maps": maps,
        "left": len(suites[MOST:]),
        "problem": measured.problem,
        "absent": measured.absent,
        "ungained": measured.ungained,
        "seeds": any(len(result.test) > 1 for result in results),
    }


def _shifts(comparison: TaskComparison) -> dict[str, Shift]:
    shown, limit = column(comparison.bootstrap.metric), _panels.widest(comparison)
    shifts = {}
    for recipe, found in comparison.bootstrap.differences.items():
        value, low, high = (
            shown.show_change(end).replace("-", "−") for end in (found.value, found.low, found.high)
        )
        sign = "≈ " if comparison.inside_floor(recipe) else ""
        tone, bar = _tone(comparison, recipe), _panels.interval_bar(found, limit)
        shifts[recipe] = Shift(sign + value, found.value, tone, f"{low} to {high}", bar)
    return shifts


def _tone(comparison: TaskComparison, recipe: str) -> str:
    side = comparison.side(recipe)
    return side if side and not comparison.inside_floor(recipe) else "similar"


def _lead(table: ComparisonTable, measured: Measured, baseline: str) -> Iterator[str]:
    """Yield the main findings as sentences."""
    yield from (f"{line}." for line in table.copies())
    task, show = table.tasks[0], column("ece").show
    found = {row.label: table.summary(row.label, task, "ece") for row in table.rows}
    means = {label: f.mean for label, f in found.items() if f and math.isfinite(f.mean)}
    if not means:
        yield "No recipe has a test figure yet."
        return
    best = min(means, key=lambda label: means[label])
    text = f"{best} has the lowest ECE, {show(means[best])} %"
    if baseline in means and best != baseline:
        text += f"; {baseline} has {show(means[baseline])} %"
    floor = table.summary(best, task, "ece_floor")
    if floor:
        text += (
            f". A perfectly calibrated network with the confidences of {best} would show about "
            f"{show(floor.mean)} % on these test data"
        )
    yield f"{text}."
    if measured.comparisons:
        yield _count(measured.comparisons["ece"], baseline)


def _count(comparison: TaskComparison, baseline: str) -> str:
    tones = [_tone(comparison, recipe) for recipe in comparison.bootstrap.differences]
    better, worse, similar = map(tones.count, ("better", "worse", "similar"))
    return (
        f"Compared with {baseline}, {_have(better)} a lower ECE beyond chance and {_have(worse)} a "
        f"higher one; for {many(similar, 'recipe')} chance can explain the difference."
    )


def _have(count: int) -> str:
    verb = "has" if count < 2 else "have"
    return f"{many(count, 'recipe') if count else 'no recipe'} {verb}"


def _scatter(source: ReportSource, table: ComparisonTable, baseline: str) -> Chart | None:
    places, task = [], table.tasks[0]
    for row in table.rows:
        accuracy, error = (table.summary(row.label, task, name) for name in COMPARED)
        if accuracy and error and math.isfinite(accuracy.mean + error.mean):
            stage = source.stage(table.results[row.label, task])
            places.append(Place(row.label, 100 * accuracy.mean, 100 * error.mean, stage))
    floor = table.summary(baseline, task, "ece_floor")
    shown = None if floor is None else 100 * floor.mean
    return scatter(places, baseline, shown) if len(places) > 1 else None


def _reliability(table: ComparisonTable, measured: Measured) -> list[Chart]:
    panels = []
    for row in table.rows:
        curves = measured.curves.get(row.label)
        found = table.summary(row.label, table.tasks[0], "ece")
        if curves and found:
            chart = reliability_diagram(curves.reliability, row.label, _panels.chance(curves))
            ece, true = (column("ece").show(value) for value in (found.mean, curves.error))
            panels.append(replace(chart, text=f"ECE {ece} %, estimated true error {true} %"))
    return panels


def _risk(table: ComparisonTable, measured: Measured, baseline: str) -> list[Chart]:
    curves = {row.label: measured.curves.get(row.label) for row in table.rows}
    known = {recipe: found for recipe, found in curves.items() if found}
    errors = [float(curve.risk[-1]) for found in known.values() for curve in found.risk]
    highest = 1.1 * max(errors, default=0) or 0.01
    reference = known[baseline].risk if baseline in known else ()
    return [
        _panels.risk_panel(found.risk, () if recipe == baseline else reference, highest, recipe)
        for recipe, found in known.items()
    ]
