"""Any table against a plain model: what each cell shows, and how."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.storage.results import StudyResult
from orchestrator.tables.columns import column
from orchestrator.tables.table import Cell, ComparisonTable, Notice, Row, TableColumn

# Factor, decimals, whether more is better, and the metric of the noise floor.
SHOWN = {
    "ece": (100, 2, False, "ece_floor"),
    "acc": (100, 2, True, None),
    "nll": (1, 4, False, None),
    "x/ece": (100, 2, False, "x/ece_floor"),
}
RECIPES, TASKS = ("ce", "ls", "ce+ts"), ("a", "b")
ROWS = (
    *(Row(recipe, (recipe,), None, "" if recipe == "ce" else "ce") for recipe in RECIPES),
    Row("both", ("ce", "ls"), None, "ls"),
    Row("ls on b", ("ls",), frozenset("b"), "both"),
)
COLUMNS = tuple(
    TableColumn((group,), tasks, metrics, column(metrics[0]))
    for group, tasks in (("a", ("a",)), ("b", ("b",)), ("both", TASKS))
    for metrics in (("ece",), ("acc",), ("nll",), ("ece", "x/ece"))
)


@st.composite
def studies(draw):
    """Draw results of some pairs, some of which lack seeds, metrics or an end."""
    # Of which sums and halves are exact, so that no rounding decides how a figure is printed.
    exact = st.integers(0, 12).map(lambda number: number / 128)
    values = st.one_of(exact, exact, exact, st.sampled_from([math.nan, math.inf]))
    names = [*SHOWN, "ece_floor", "x/ece_floor"]
    found = []
    seeds = draw(st.integers(1, 3))
    for recipe, task in itertools.product(RECIPES, TASKS):
        status = draw(st.sampled_from(["finished"] * 8 + ["failed", "running", "absent"]))
        if status == "absent":
            continue
        lacking = draw(st.sampled_from([None] * 8 + names))
        own = seeds if draw(st.integers(0, 5)) else draw(st.integers(0, 3))
        test = [{name: draw(values) for name in names if name != lacking} for _ in range(own)]
        fails = {"trials_finished": 3, "trials_failed": draw(st.integers(0, 2)), "reason": "NaN"}
        found.append(StudyResult("s", task, recipe, status, test=tuple(test), **fails))
    return {(result.recipe, result.task): result for result in found}


def of_seeds(result, metric):
    if result is None or result.status != "finished":
        return []
    return [seed[metric] for seed in result.test if metric in seed]


def mean_of(results, row, tasks, metrics):
    """Return mean and deviation of a cell, seed by seed where all have as many."""
    own = [task for task in tasks if row.tasks is None or task in row.tasks]
    each = [
        of_seeds(results.get((recipe, task)), metric)
        for recipe, task, metric in itertools.product(row.recipes, own, metrics)
    ]
    if not each or not all(each):
        return None
    count = len(each[0])
    if any(len(seeds) != count for seeds in each):
        return sum(sum(seeds) / len(seeds) for seeds in each) / len(each), None
    means = [sum(seeds[k] for seeds in each) / len(each) for k in range(count)]
    mean = sum(means) / count
    if count == 1 or not all(map(math.isfinite, means)):
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in means) / (count - 1))


def floor_of(results, row, tasks, metrics):
    floors = [SHOWN[metric][3] for metric in metrics]
    found = None if None in floors else mean_of(results, row, tasks, floors)
    return None if found is None else found[0]


def show(metric, value, sign=""):
    factor, digits, _, _ = SHOWN[metric]
    return f"{factor * value:{sign}.{digits}f}"


def why_not(results, row, tasks):
    """Return how many of a cell's studies are in which way without figures."""
    own = [task for task in tasks if row.tasks is None or task in row.tasks]
    found = []
    for task, recipe in itertools.product(own, row.recipes):
        result = results.get((recipe, task))
        if result is None:
            found.append("not run")
        elif result.status != "finished":
            found.append(result.status)
        elif not result.test:
            found.append("no figures")
    pairs = len(own) * len(row.recipes)
    if not found:
        return None if pairs else "not run"
    if pairs == 1 or found == ["not run"] * pairs:
        return found[0]
    counts = [f"{found.count(word)} {word}" for word in dict.fromkeys(found)]
    return f"of {pairs}: {', '.join(counts)}"


def change_of(results, row, entry, floored):
    """Return a cell's difference from its row's baseline, and whether it is better."""
    others = [other for other in ROWS if other.label == row.baseline]
    metric, higher = entry.metrics[0], SHOWN[entry.metrics[0]][2]
    found = [mean_of(results, one, entry.tasks, entry.metrics) for one in (row, *others)]
    if not others or None in found or not math.isfinite(found[0][0] - found[1][0]):
        return "", ""
    gap = found[0][0] - found[1][0]
    text = show(metric, gap, "+")
    text = text.replace("-", "+") if float(text) == 0 else text
    floors = [floor_of(results, one, entry.tasks, entry.metrics) for one in (row, *others)]
    if floored and floors[0] is not None and abs(gap) <= max(floors[0], floors[1] or 0):
        return f"≈ {text}", ""
    if float(text) == 0:
        return text, ""
    return text, "better" if (gap > 0) == higher else "worse"


def expected(results, row, entry, floored):
    """Return one cell."""
    metric, higher = entry.metrics[0], SHOWN[entry.metrics[0]][2]
    found = mean_of(results, row, entry.tasks, entry.metrics)
    floor = floor_of(results, row, entry.tasks, entry.metrics) if floored else None
    asides = () if floor is None else (f"(floor {show(metric, floor)})",)
    if found is None:
        return Cell("–", asides=asides)
    mean, deviation = found
    column_of = (mean_of(results, other, entry.tasks, entry.metrics) for other in ROWS)
    prints = {show(metric, one[0]) for one in column_of if one and math.isfinite(one[0])}
    order = sorted(prints, key=float, reverse=higher)
    text = show(metric, mean)
    mark = dict(zip(order, ("best", "second"), strict=False)).get(text, "")
    text += f" ± {show(metric, deviation)}" if deviation is not None else ""
    text += "†" if floor is not None and mean <= floor else ""
    return Cell(text, mark, *change_of(results, row, entry, floored), asides)


@settings(max_examples=80, derandomize=True, database=None)
@given(studies(), st.booleans())
def test_every_cell_is_what_a_plain_model_says(results, floored):
    table = ComparisonTable(ROWS, COLUMNS, results, floor=floored)
    for row in ROWS:
        shown = [cell for cell in table.line(row) for _ in range(cell.span)]
        for entry, cell in zip(COLUMNS, shown, strict=True):
            why = why_not(results, row, entry.tasks)
            if why is not None:
                assert isinstance(cell, Notice)
                assert cell.short == why
            else:
                assert cell == expected(results, row, entry, floored)


@settings(max_examples=40, derandomize=True, database=None)
@given(studies(), st.sampled_from(list(SHOWN)))
def test_rows_are_sorted_by_their_mean_over_all_tasks(results, metric):
    table = ComparisonTable(ROWS, COLUMNS, results)
    found = {row.label: mean_of(results, row, TASKS, (metric,)) for row in ROWS}
    known = [label for label, mean in found.items() if mean and math.isfinite(mean[0])]
    ours = [row.label for row in table.sorted_by(metric).rows]
    means = [found[label][0] for label in ours[: len(known)]]
    assert means == sorted(means, reverse=SHOWN[metric][2])
    assert set(ours[: len(known)]) == set(known)
    assert ours[len(known) :] == [row.label for row in ROWS if row.label not in known]
