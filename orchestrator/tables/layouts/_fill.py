"""Fills a layout with results and with comparable published figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from orchestrator.tables.arrange import Results, check_metrics, places
from orchestrator.tables.columns import column
from orchestrator.tables.layouts._layout import Layout, LayoutRow
from orchestrator.tables.published import load_published
from orchestrator.tables.table import ComparisonTable, Row, TableColumn
from trainables.common.errors import InputError
from trainables.common.stages import GIVEN
from trainables.metrics import METRICS, REPORTED

COLUMN_CHOICES = ("auto", "paper", "sweep")
SINGLE = "ood-"  # Prefix of suites with one data set; the suite ``ood`` is their mean.
LOGITS = "logits:"
BINS = 15  # Number of bins of every binned metric, except in the suites ``bins-N``.

BINNED = tuple(name for name in REPORTED if METRICS[name].binned)
# Maps our names of metrics to published names, where they differ.
NAMES = {"seconds": "train_seconds"}
CALIBRATORS = {"meta-mis": "metamis", "meta-acc": "metaacc"}
# Second stages on plain cross-entropy that the papers list as separate methods.
STAGES = ("tst", "vtst")
# Markers of published figures that are probably misprints.
DOUBTS = ("cell missing", "conflicts", "garbled", "implausible", "outlier", "suspicious")


class _Place(NamedTuple):
    """A group of columns; ``dataset`` and ``model`` are published names, empty for other tasks."""

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

    Cells without a result are marked "not run"; recipes and tasks that the layout does not have are
    listed below the table.

    Args:
        layout: The layout.
        results: Results by recipe and task.
        metrics: Metrics to show instead of the layout's.
        columns: ``paper`` for the layout's data sets and models; ``sweep`` for the tasks of the
            results; ``auto`` for ``paper`` if the results have one of its tasks, else ``sweep``.
        published: Whether the paper's figures are shown next to ours.
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
    values = {}
    if published:
        source = Figures(layout)
        figures = _figures(source, ours, names, results)
        remarks += _published_remarks(source, table, figures)
        values = {at: found.value / shown[at[1]].shown.factor for at, found in figures.items()}
    return replace(table, published=values, remarks=tuple(remarks))


def _places(layout: Layout, results: Results, columns: str) -> list[_Place]:
    if columns not in COLUMN_CHOICES:
        raise InputError(f"columns {columns!r} is not one of {', '.join(COLUMN_CHOICES)}")
    if columns == "paper" and not layout.columns:
        raise InputError(f"layout {layout.name} names no columns; use columns='sweep'")
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
    """Return the name of the task on a data set and model, even if it has no results."""
    if model.startswith(LOGITS):
        dataset, model = model.removeprefix(LOGITS), GIVEN
    found = dict.fromkeys(
        task for (_, task), r in results.items() if (r.dataset, r.model) == (dataset, model)
    )
    if len(found) > 1:
        raise InputError(
            f"layout {layout.name}: {dataset} / {model} has several tasks: {', '.join(found)}; "
            "choose one with --tasks"
        )
    return next(iter(found), f"{dataset}/{model}")


def _column(layout: Layout, results: Results, place: _Place, metric: str) -> TableColumn:
    suites = _suite_metrics(layout, results, place, metric) if layout.suite_metrics else ()
    return TableColumn(place.groups, place.tasks, suites or (metric,), column(metric))


def _suite_metrics(layout: Layout, results: Results, place: _Place, metric: str) -> tuple[str, ...]:
    suites = layout.suites.get(place.dataset)
    if suites is not None:
        return tuple(f"{suite}/{metric}" for suite in suites)
    found = (r for (_, task), r in results.items() if task in place.tasks)
    names = {name for result in found for seed in result.test for name in seed}
    ours = (name for name in names if name.startswith(SINGLE) and name.endswith(f"/{metric}"))
    return tuple(sorted(ours))


def _figures(
    source: Figures, ours: Sequence[_Place], metrics: Sequence[str], results: Results
) -> dict[tuple[str, int], Figure]:
    parts = _subsets(results)
    cells = [(place, metric) for place in ours for metric in metrics]
    return {
        (row.name, position): found
        for row in source.layout.rows
        for position, (place, metric) in enumerate(cells)
        if parts.keys().isdisjoint(place.tasks)
        and (found := source.find(row, place.dataset, place.model, metric)) is not None
    }


def _subsets(results: Results) -> dict[str, str]:
    """Map each task that used only a part of its data set to a description of that part."""
    return {task: result.subset for (_, task), result in results.items() if result.subset}


def _remarks(layout: Layout, table: ComparisonTable, ours: Sequence[_Place]) -> Iterator[str]:
    if layout.columns and not ours[0].dataset:
        yield f"rows of layout {layout.name}; columns are the sweep's own tasks"
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
    recipes, tasks = map(dict.fromkeys, zip(*table.results, strict=True))
    for what, there, shown in (("recipes", recipes, table.recipes), ("tasks", tasks, table.tasks)):
        names = [name for name in there if name not in shown]
        if names:
            yield f"{what} of the sweep that are not in this layout: {', '.join(names)}"


def _published_remarks(
    source: Figures, table: ComparisonTable, figures: dict[tuple[str, int], Figure]
) -> Iterator[str]:
    layout = source.layout
    for what, reason in layout.incomparable.items():
        yield f"not compared with the paper: {what}: {reason}"
    for task, limits in _subsets(table.results).items():
        yield f"not compared with the paper: {task}: only a part of the data set ({limits})"
    if not figures:
        yield f"{layout.paper} {layout.table} has no figure for these data sets and models"
        return
    protocols = dict.fromkeys(
        result.protocol
        for (_, task), result in table.results.items()
        if task in table.tasks and result.protocol
    )
    trained = f"our networks were trained by {', '.join(protocols) or 'an unknown protocol'}"
    yield (
        f"[paper]: published in {layout.paper} {layout.table} for the same data set, model and "
        f"metric; {'our figures are from given logits' if GIVEN in protocols else trained}"
    )
    if set(table.metrics) & set(BINNED) and not source.states_bins():
        yield f"the paper does not state the number of bins; ours is {BINS}"
    for (label, position), figure in figures.items():
        if figure.doubt:
            place = " / ".join(table.columns[position].headings)
            yield f"doubtful in the paper: {label} on {place}: {figure.value:g}: {figure.doubt}"


class PublishedKey(NamedTuple):
    """The name of a row in a published table; see ``load_published`` and ``LayoutRow``."""

    method: str
    stage2: str = ""
    posthoc: str = ""
    note: str = ""


def published_key(row: LayoutRow) -> PublishedKey:
    """Return the name of a layout's row in the published table."""
    method, *others = row.recipes[0].split("+")
    key = PublishedKey(method)
    for part in others:
        if part in STAGES:
            key = key._replace(method=part)
        elif part.startswith("macal"):
            key = key._replace(stage2="macal")
        else:
            key = key._replace(posthoc=CALIBRATORS.get(part, part.replace("-", "+", 1)))
    return key._replace(**row.published)


class Figure(NamedTuple):
    """A published figure (percent or seconds), its note, and its number of bins if stated."""

    value: float
    note: str
    bins: int | None

    @property
    def doubt(self) -> str:
        """Return the note if it says that the figure is probably a misprint, else nothing."""
        return self.note if any(word in self.note for word in DOUBTS) else ""


class Figures:
    """The figures of one published table."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._found: dict[tuple[str, ...], list[Figure]] = defaultdict(list)
        table = load_published("results")
        ours = table[(table["paper"] == layout.paper) & (table["table"] == layout.table)]
        for row in ours.dropna(subset="value").itertuples(index=False):
            place = (row.dataset, row.model, row.method, row.stage2, row.posthoc, row.metric)
            bins = int(str(row.n_bins)) if str(row.n_bins).isdigit() else None
            figure = Figure(float(str(row.value)), str(row.note), bins)
            self._found[tuple(map(str, place))].append(figure)

    def find(self, row: LayoutRow, dataset: str, model: str, metric: str) -> Figure | None:
        """Return a published figure, or None if none can be compared.

        ``dataset`` and ``model`` are published names, ``metric`` is ours. Of the metrics of suites,
        only those of ``bins-N`` are compared.
        """
        if {"all", dataset, model} & set(self.layout.incomparable):
            return None
        key = published_key(row)
        bins, name = _bins(metric)
        place = (dataset, model, *key[:3], NAMES.get(name, name))
        found = self._found.get(place, [])
        return next((f for f in found if f.note.startswith(key.note) and f.bins in bins), None)

    def states_bins(self) -> bool:
        """Return True if the table states the bins of its calibration errors."""
        return any(figure.bins for found in self._found.values() for figure in found)


def _bins(metric: str) -> tuple[set[int | None], str]:
    """Return the comparable numbers of bins (None: not stated) and the metric without its suite."""
    suite, _, name = metric.rpartition("/")
    if not suite:
        return {None, BINS}, name
    return ({int(suite.removeprefix("bins-"))} if suite.startswith("bins-") else set()), name
