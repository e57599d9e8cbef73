"""The comparison table as data: which rows and columns, which figures, which are best."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from orchestrator.results import StudyResult
from trainables.errors import InputError

__all__ = [
    "COLUMNS",
    "Cell",
    "Column",
    "ComparisonTable",
    "Notice",
    "Summary",
    "build_table",
    "column",
]


class Column(NamedTuple):
    """How a metric is shown: heading, factor, decimals, and whether more is better.

    A noise floor is ``neutral``: neither more nor less of it is better, and none is marked as best.
    """

    label: str
    factor: float
    digits: int
    higher: bool = False
    neutral: bool = False

    @property
    def heading(self) -> str:
        """Return label, unit and direction, such as ``ECE % ↓``."""
        unit = " %" if self.factor == 100 else ""
        arrow = "" if self.neutral else " ↑" if self.higher else " ↓"
        return f"{self.label}{unit}{arrow}"

    def show(self, fraction: float) -> str:
        """Return a fraction as it is printed, without its unit."""
        return f"{self.factor * fraction:.{self.digits}f}"


# Brier and NLL are no fractions of anything, so they stay as they are; the class-wise errors shrink
# with the number of classes and get a decimal more.
COLUMNS: Mapping[str, Column] = {
    "acc": Column("Acc", 100, 2, higher=True),
    "nll": Column("NLL", 1, 4),
    "brier": Column("Brier", 1, 4),
    "ece": Column("ECE", 100, 2),
    "aece": Column("AECE", 100, 2),
    "cwece": Column("cwECE", 100, 3),
    "cwaece": Column("cwAECE", 100, 3),
    "mce": Column("MCE", 100, 2),
    "debiased_ece": Column("debiased ECE", 100, 2),
    "smooth_ece": Column("smooth ECE", 100, 2),
    "ece_floor": Column("ECE floor", 100, 2, neutral=True),
    "aece_floor": Column("AECE floor", 100, 2, neutral=True),
    "cwece_floor": Column("cwECE floor", 100, 3, neutral=True),
    "auroc": Column("AUROC", 100, 2, higher=True),
    "fpr95": Column("FPR95", 100, 2),
    "seconds": Column("Seconds", 1, 1),
}
"""Every metric that a table can show; a suite's metric is ``SUITE/METRIC``, see ``column``."""

SUITE = re.compile(r"[a-z0-9][\w.@+-]*(/[a-z0-9][\w.@+-]*)*")


def column(name: str) -> Column:
    """Return how a metric is shown.

    Args:
        name: A name from ``COLUMNS``, or one after a suite's name and ``/``, such as
            ``cifar10-c/ece`` or ``ood-svhn/auroc``. The cost, ``seconds``, belongs to no suite.

    Raises:
        InputError: If there is no such metric.
    """
    suite, slash, metric = name.rpartition("/")
    if metric in COLUMNS and not slash:
        return COLUMNS[metric]
    if metric in COLUMNS and metric != "seconds" and SUITE.fullmatch(suite):
        found = COLUMNS[metric]
        return found._replace(label=f"{suite} {found.label}")
    raise InputError(
        f"unknown metric {name!r}; there are: {', '.join(COLUMNS)}, and SUITE/METRIC for a suite"
    )


class Summary(NamedTuple):
    """Mean and sample standard deviation (n - 1) over seeds, fractions; None for one seed."""

    mean: float
    std: float | None


class Cell(NamedTuple):
    """One figure as printed, and ``best``, ``second`` or nothing."""

    text: str
    mark: str = ""


class Notice(NamedTuple):
    """What stands in place of figures: one word or two, and all that is to say."""

    short: str
    text: str


@dataclass(frozen=True)
class ComparisonTable:
    """Recipes by tasks and metrics, on test data of the chosen configurations.

    Attributes:
        recipes: The rows, in order.
        tasks: The column groups, in order.
        metrics: The columns of each group, in order.
        results: Every study's result by recipe and task; a pair may be missing.
    """

    recipes: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    results: Mapping[tuple[str, str], StudyResult]

    def summary(self, recipe: str, task: str, metric: str) -> Summary | None:
        """Return a metric over the seeds of one study, or None where there is no figure."""
        result = self.results.get((recipe, task))
        if result is None or result.status != "finished":
            return None
        return summarise([row[metric] for row in result.test if metric in row])

    def block(self, recipe: str, task: str) -> tuple[Cell, ...] | Notice:
        """Return the cells of one recipe and task, or why there are none."""
        result = self.results.get((recipe, task))
        if result is None:
            return Notice("not run", "not run")
        if result.status != "finished" or not result.test:
            return _outcome(result)
        return tuple(self._cell(recipe, task, metric) for metric in self.metrics)

    def notes(self) -> list[str]:
        """Return the lines below a table: seeds, and trials that failed in finished studies."""
        return [*self._seed_note(), *self._failures()]

    def sorted_by(self, metric: str, task: str | None = None) -> ComparisonTable:
        """Return the table with the best recipe first; rows without a figure keep their order last.

        Args:
            metric: A name from ``COLUMNS``, shown or not.
            task: Sort by this task alone; without it by the mean over all tasks, and a recipe that
                lacks a figure on one of them comes last.

        Raises:
            InputError: If the metric or the task is unknown.
        """
        _check_metrics((metric,))
        if task is not None and task not in self.tasks:
            raise InputError(f"unknown task {task!r}; there are: {', '.join(self.tasks)}")
        tasks = self.tasks if task is None else (task,)

        def key(recipe: str) -> float:
            means = [found.mean for name in tasks if (found := self.summary(recipe, name, metric))]
            if len(means) < len(tasks) or not all(map(math.isfinite, means)):
                return math.inf
            mean = statistics.fmean(means)
            return -mean if column(metric).higher else mean

        return replace(self, recipes=tuple(sorted(self.recipes, key=key)))

    def _cell(self, recipe: str, task: str, metric: str) -> Cell:
        found = self.summary(recipe, task, metric)
        if found is None:
            return Cell("–")
        show = column(metric).show
        text = show(found.mean)
        best, second = self._leaders[task, metric]
        mark = {best: "best", second: "second"}.get(text, "") if math.isfinite(found.mean) else ""
        return Cell(text if found.std is None else f"{text} ± {show(found.std)}", mark)

    @cached_property
    def _leaders(self) -> dict[tuple[str, str], tuple[str | None, str | None]]:
        """Best and second best figure as printed, by task and metric; equal prints are one."""
        return {
            (task, metric): self._two_best(task, metric)
            for task in self.tasks
            for metric in self.metrics
        }

    def _two_best(self, task: str, metric: str) -> tuple[str | None, str | None]:
        shown = column(metric)
        if shown.neutral:
            return None, None
        found = (self.summary(recipe, task, metric) for recipe in self.recipes)
        texts = {shown.show(item.mean) for item in found if item and math.isfinite(item.mean)}
        ordered: list[str | None] = [*sorted(texts, key=float, reverse=shown.higher), None, None]
        return ordered[0], ordered[1]

    def _seed_note(self) -> list[str]:
        counts = {len(result.test) for result in self.results.values() if result.test}
        if max(counts, default=1) < 2:
            return []
        seeds = str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        return [f"mean ± sample standard deviation over {seeds} seeds"]

    def _failures(self) -> list[str]:
        found = []
        for recipe in self.recipes:
            for task in self.tasks:
                result = self.results.get((recipe, task))
                if result and result.status == "finished" and result.trials_failed:
                    found.append(f"{recipe} on {task}: {_failed_trials(result)} failed")
        return found


def build_table(
    results: Iterable[StudyResult],
    metrics: Sequence[str] = ("acc", "ece", "aece", "cwece", "nll"),
) -> ComparisonTable:
    """Arrange results as a table.

    Recipes stand in the order of first appearance, each method followed by its refined and
    calibrated variants; tasks in the order of first appearance. No result is dropped: failed and
    running studies keep their row.

    Args:
        results: One a recipe and task.
        metrics: Columns to show, names from ``COLUMNS``.

    Raises:
        InputError: If there is no result, a metric is unknown or stands twice, or two results are
            of the same recipe and task.
    """
    _check_metrics(metrics)
    table: dict[tuple[str, str], StudyResult] = {}
    for result in results:
        key = (result.recipe, result.task)
        if key in table:
            sweeps = " and ".join(dict.fromkeys((table[key].sweep, result.sweep)))
            raise InputError(f"two results for {key[0]} on {key[1]} (sweep {sweeps}); choose one")
        table[key] = result
    if not table:
        raise InputError("there are no results to make a table of")
    recipes = _in_families(dict.fromkeys(recipe for recipe, _ in table))
    tasks = tuple(dict.fromkeys(task for _, task in table))
    return ComparisonTable(recipes, tasks, tuple(metrics), table)


def summarise(values: Sequence[float]) -> Summary | None:
    """Return mean and sample standard deviation, or None without values."""
    if not values:
        return None
    if not all(map(math.isfinite, values)):
        return Summary(sum(values) / len(values), None)  # one seed at NaN or infinity must show
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std)


def _outcome(result: StudyResult) -> Notice:
    if result.status == "failed":
        reason = f": {result.reason}" if result.reason else ""
        return Notice("failed", f"failed ({_failed_trials(result)}){reason}")
    if result.status == "running":
        counts = f"{result.trials_finished} trials finished, {result.trials_failed} failed"
        return Notice("running", f"running ({counts})")
    return Notice("no figures", "finished, without test figures")


def _failed_trials(result: StudyResult) -> str:
    total = result.trials_finished + result.trials_failed
    return f"{result.trials_failed} of {total} trials"


def _in_families(recipes: Iterable[str]) -> tuple[str, ...]:
    """Put every recipe behind the one it extends, families in order of first appearance."""
    first: dict[str, int] = {}
    lineage: dict[str, list[str]] = {}
    for position, recipe in enumerate(recipes):
        lineage[recipe] = list(accumulate(recipe.split("+"), lambda left, part: f"{left}+{part}"))
        for ancestor in lineage[recipe]:
            first.setdefault(ancestor, position)
    return tuple(sorted(lineage, key=lambda recipe: [first[name] for name in lineage[recipe]]))


def _check_metrics(metrics: Sequence[str]) -> None:
    for metric in metrics:
        column(metric)
    if not metrics or len(set(metrics)) < len(metrics):
        raise InputError(f"metrics {', '.join(metrics) or 'none'}: give each once, at least one")
