"""From a layout and results to a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator._arrange import Results, check_metrics, places
from orchestrator._columns import column
from orchestrator._table import ComparisonTable, Row, TableColumn
from orchestrator.layouts._layout import Layout
from orchestrator.layouts._published import BINNED, BINS, Figure, Figures
from trainables.errors import InputError

__all__ = ["COLUMN_CHOICES", "arrange_layout"]

COLUMN_CHOICES = ("auto", "paper", "sweep")
# Suites of one data set each; ``ood`` alone is their mean already.
SINGLE = "ood-"


@dataclass(frozen=True)
class _Place:
    """What a group of columns shows: the tasks, and data set and model as published, if any."""

    groups: tuple[str, ...]
    tasks: tuple[str, ...]
    dataset: str = ""
    model: str = ""


def arrange_layout(
    layout: Layout,
    results: Results,
    metrics: Sequence[str] | None = None,
    columns: str = "auto",
    published: bool = False,
) -> ComparisonTable:
    """Fill a layout with results.

    What the layout asks for and the results lack appears as not run; what the results have and the
    layout does not ask for is named below the table.

    Args:
        layout: The layout.
        results: Results by recipe and task.
        metrics: Other metrics than the layout's.
        columns: ``paper`` for the layout's data sets and models; ``sweep`` for the tasks of the
            results; ``auto`` for the former if the results have one of them, else the latter.
        published: Whether the paper's figures stand beside ours.

    Raises:
        InputError: If a metric or choice is unknown, or several tasks fit one column.
    """
    names = tuple(layout.metrics if metrics is None else metrics)
    check_metrics(names)
    if published and not layout.paper:
        raise InputError(f"layout {layout.name} names no paper, so nothing published can be shown")
    ours = _places(layout, results, columns)
    shown = [_column(layout, results, place, name) for place in ours for name in names]
    rows = tuple(Row(row.name, row.recipes, None, row.baseline) for row in layout.rows)
    table = ComparisonTable(rows, tuple(shown), results, layout=layout.name)
    remarks = [*_remarks(layout, table, ours)]
    figures = _figures(layout, ours, names, results) if published else {}
    if published:
        remarks += _published_remarks(layout, table, figures)
    ratios = [entry.shown.factor for entry in shown]
    values = {place: figure.value / ratios[place[1]] for place, figure in figures.items()}
    return replace(table, published=values, remarks=tuple(remarks))


def _places(layout: Layout, results: Results, columns: str) -> list[_Place]:
    if columns not in COLUMN_CHOICES:
        raise InputError(f"columns {columns!r} is not one of {', '.join(COLUMN_CHOICES)}")
    if columns == "paper" and not layout.columns:
        raise InputError(f"layout {layout.name} names no columns; take --columns sweep")
    known = {task for _, task in results}
    paper = [] if columns == "sweep" else list(_paper_places(layout, results))
    if columns == "paper" or any(known.intersection(place.tasks) for place in paper):
        return paper
    return [_Place(groups, (task,)) for groups, tasks in places(results).items() for task in tasks]


def _paper_places(layout: Layout, results: Results) -> Iterator[_Place]:
    for dataset, models in layout.columns.items():
        for model, ours in models.items():
            members = (ours,) if isinstance(ours, str) else ours
            name = layout.datasets.get(dataset, dataset)
            tasks = tuple(_task(layout, results, name, member) for member in members)
            yield _Place((dataset, model), tasks, dataset, model)


def _task(layout: Layout, results: Results, dataset: str, model: str) -> str:
    """Return the task on a data set and model, or what stands for it if there is none."""
    found = dict.fromkeys(
        task for (_, task), r in results.items() if (r.dataset, r.model) == (dataset, model)
    )
    if len(found) > 1:
        raise InputError(
            f"layout {layout.name}: {dataset} / {model} fits several tasks: {', '.join(found)}; "
            "choose with --tasks"
        )
    return next(iter(found), f"{dataset}/{model}")


def _column(layout: Layout, results: Results, place: _Place, metric: str) -> TableColumn:
    metrics: tuple[str, ...] = (metric,)
    if layout.suite_metrics:
        metrics = _suite_metrics(layout, results, place, metric) or metrics
    return TableColumn(place.groups, place.tasks, metrics, column(metric))


def _suite_metrics(layout: Layout, results: Results, place: _Place, metric: str) -> tuple[str, ...]:
    suites = layout.suites.get(place.dataset)
    if suites is not None:
        return tuple(f"{suite}/{metric}" for suite in suites)
    found = (r for (_, task), r in results.items() if task in place.tasks)
    names = {name for result in found for seed in result.test for name in seed}
    ours = (name for name in names if name.startswith(SINGLE) and name.endswith(f"/{metric}"))
    return tuple(sorted(ours))


def _figures(
    layout: Layout, ours: Sequence[_Place], metrics: Sequence[str], results: Results
) -> dict[tuple[str, int], Figure]:
    source, parts = Figures(layout), _subsets(results)
    cells = [(place, metric) for place in ours for metric in metrics]
    return {
        (row.name, position): found
        for row in layout.rows
        for position, (place, metric) in enumerate(cells)
        if parts.keys().isdisjoint(place.tasks)
        and (found := source.find(row, place.dataset, place.model, metric)) is not None
    }


def _subsets(results: Results) -> dict[str, str]:
    """Return the limits of the tasks that have seen a part of their data set."""
    return {task: result.subset for (_, task), result in results.items() if result.subset}


def _remarks(layout: Layout, table: ComparisonTable, ours: Sequence[_Place]) -> Iterator[str]:
    if layout.columns and not ours[0].dataset:
        yield f"layout {layout.name} with the sweep's own tasks as columns"
    for place in ours:
        if len(place.tasks) > 1:
            yield f"{' / '.join(place.groups)}: mean over {', '.join(place.tasks)}"
    for metrics in dict.fromkeys(entry.metrics for entry in table.columns):
        if len(metrics) > 1:
            yield f"{metrics[0].rpartition('/')[2]}: mean over {', '.join(metrics)}"
    if layout.note:
        yield layout.note
    for entry in layout.not_offered:
        yield f"not offered: {entry.what}: {entry.reason}"
    yield from _left_out(table)


def _left_out(table: ComparisonTable) -> Iterator[str]:
    """Yield what the results have and the layout does not show."""
    recipes = dict.fromkeys(recipe for recipe, _ in table.results if recipe not in table.recipes)
    tasks = dict.fromkeys(task for _, task in table.results if task not in table.tasks)
    for what, names in (("recipes", recipes), ("tasks", tasks)):
        if names:
            yield f"{what} of the sweep that are not in this layout: {', '.join(names)}"


def _published_remarks(
    layout: Layout, table: ComparisonTable, figures: dict[tuple[str, int], Figure]
) -> Iterator[str]:
    yield from (
        f"not compared with the paper: {what}: {reason}"
        for what, reason in layout.incomparable.items()
    )
    yield from (
        f"not compared with the paper: {task}: only a part of the data set ({limits})"
        for task, limits in _subsets(table.results).items()
    )
    if not figures:
        yield f"{layout.paper} {layout.table} has no figure for these data sets and models"
        return
    protocols = dict.fromkeys(
        result.protocol
        for (_, task), result in table.results.items()
        if task in table.tasks and result.protocol
    )
    yield (
        f"[paper]: published in {layout.paper} {layout.table} for the same data set, model and "
        f"metric; ours trained by {', '.join(protocols) or 'an unknown protocol'}"
    )
    if set(table.metrics) & set(BINNED) and not Figures(layout).states_bins():
        yield f"the paper does not state the number of bins; ours are {BINS}"
    for (label, position), figure in figures.items():
        if figure.doubt:
            place = " / ".join(table.columns[position].headings)
            yield f"doubtful in the paper: {label} on {place}: {figure.value:g}: {figure.doubt}"
