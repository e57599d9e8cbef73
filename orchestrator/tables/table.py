"""The comparison table as data: rows, columns, figures, the best figures and the notes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby, product
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.storage.results import StudyResult
from orchestrator.tables.columns import HTML, MARKDOWN, Column, column, fill_template, floor_of
from search_spaces import known_spaces
from trainables.common.errors import InputError
from trainables.common.words import many

if TYPE_CHECKING:
    import pandas as pd

INSIDE = "†"  # a figure that is not above its noise floor
SIMILAR = "≈"  # a difference that is not above the noise floor
KEPT = "default"  # the published default was chosen
CHARGED = 1e-6  # a smaller loss of accuracy is a rounding error


class Summary(NamedTuple):
    """Mean and sample standard deviation (n - 1; None for one seed) over seeds, as fractions."""

    mean: float
    std: float | None


class Cell(NamedTuple):
    """One figure as printed.

    Attributes:
        mark: ``best``, ``second`` or nothing.
        change: The difference from the baseline, or the gain of the search; empty for neither.
        tone: ``better`` or ``worse``; empty if the difference is 0 or inside a shown noise floor,
            or the gain is not clear.
        asides: Texts after the figure, such as its noise floor and the published figure.
    """

    text: str
    mark: str = ""
    change: str = ""
    tone: str = ""
    asides: tuple[str, ...] = ()
    span: int = 1


class Gain(NamedTuple):
    """The gain of one study's search over the published default, which was its first trial.

    Attributes:
        value: The chosen trial's metric minus the default's; fractions (nats for NLL).
        low, high: Ends of its 95% interval.
        kept: Whether the published default was chosen.
        similar: Whether the difference is not above the noise floor.
    """

    value: float
    low: float
    high: float
    kept: bool
    similar: bool

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0 and the difference is above the noise floor."""
        return (self.low > 0 or self.high < 0) and not self.similar


class Grouping(NamedTuple):
    """Letters of recipes by one metric on one task; a shared letter means no clear difference."""

    letters: Mapping[str, str]
    note: str
    seeds: int


class Notice(NamedTuple):
    """A message instead of figures: a short and a full text, and how many columns it spans."""

    short: str
    text: str
    span: int = 1


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        recipes: One recipe, or several whose mean the row shows.
        tasks: Tasks for which the row has figures; None for all.
        baseline: Label of the row to compare with, or empty.
    """

    label: str
    recipes: tuple[str, ...]
    tasks: frozenset[str] | None = None
    baseline: str = ""


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Attributes:
        groups: Headings above the metric's, such as data set and model, outermost first.
        metrics: One metric, or several whose mean the column shows.
    """

    groups: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    shown: Column

    @property
    def headings(self) -> tuple[str, ...]:
        """Return all headings, outermost first, the metric's last."""
        return (*self.groups, self.shown.heading)


@dataclass(frozen=True)
class ComparisonTable:
    """Test results of the chosen configurations, arranged in rows and columns.

    Attributes:
        results: Results by recipe and task; a pair may be missing.
        published: Published figures by row label and position of the column, as fractions.
        remarks: Further lines below the table; see ``notes``.
        floor: Whether each figure's noise floor is shown.
        runs: Whether the runs behind the figures are listed below the table.
        layout: Name of the table's layout; empty if there is none.
        gains: Gains of the search by recipe, task and metric; None to show none.
        ties: Groups of recipes by task and metric; None to show none.
    """

    rows: tuple[Row, ...]
    columns: tuple[TableColumn, ...]
    results: Mapping[tuple[str, str], StudyResult]
    published: Mapping[tuple[str, int], float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    floor: bool = False
    runs: bool = False
    layout: str = ""
    gains: Mapping[tuple[str, str, str], Gain] | None = None
    ties: Mapping[tuple[str, str], Grouping] | None = None

    @property
    def recipes(self) -> tuple[str, ...]:
        """Return the recipes that the rows show, in order."""
        return tuple(dict.fromkeys(recipe for row in self.rows for recipe in row.recipes))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks that the columns show, in order."""
        return tuple(dict.fromkeys(task for entry in self.columns for task in entry.tasks))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics that the columns show, in order."""
        return tuple(dict.fromkeys(name for entry in self.columns for name in entry.metrics))

    @cached_property
    def spans(self) -> tuple[tuple[int, ...], ...]:
        """Return the positions of each group of adjacent columns with the same tasks."""
        positions = range(len(self.columns))
        same = groupby(positions, key=lambda i: (self.columns[i].groups, self.columns[i].tasks))
        return tuple(tuple(group) for _, group in same)

    def summary(self, recipe: str, task: str, metric: str) -> Summary | None:
        """Return a metric's mean and deviation over a study's seeds; None without results."""
        return _summary(self._seeds(recipe, task, metric))

    def figure(self, row: Row, entry: TableColumn) -> Summary | None:
        """Return the figure of a cell, or None if any part of it is missing.

        A mean over recipes, tasks or metrics is computed seed by seed. It has no standard deviation
        if the numbers of seeds differ.
        """
        return self._mean(row, entry.tasks, entry.metrics)

    def seeds(self, row: Row, entry: TableColumn) -> int:
        """Return a cell's number of seeds; for a mean over studies, the smallest number."""
        sources = self.sources(row, entry.tasks)
        counts = (len(self._seeds(*pair, name)) for pair in sources for name in entry.metrics)
        return min(counts, default=0)

    def to_pandas(self) -> pd.DataFrame:
        """Return one line per row and column, figures as fractions (NLL and Brier unchanged).

        ``frame.pivot(index="row", columns="column", values="mean")`` has the table's shape.
        """
        import pandas as pd  # Slow to import, and seldom needed.

        return pd.DataFrame.from_records([*self.records()])

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield one record per row and column, figures as fractions (NLL and Brier unchanged).

        Names of recipes, tasks, metrics and runs are separated by spaces. Records have the keys
        ``gain`` and ``group`` only if the table has gains and groups.
        """
        for row in self.rows:
            for position, entry in enumerate(self.columns):
                notice, found = self.notice(row, entry), self.figure(row, entry)
                gain = self.gain(row, entry)
                ends = (gain.value, gain.low, gain.high) if gain else (None, None, None)
                gained = dict(zip(("gain", "gain_low", "gain_high"), ends, strict=True))
                yield {
                    "layout": self.layout,
                    "row": row.label,
                    "recipes": " ".join(row.recipes),
                    "column": " / ".join(entry.headings),
                    "tasks": " ".join(entry.tasks),
                    "metrics": " ".join(entry.metrics),
                    "status": notice.text if notice else "finished" if found else "no figure",
                    "mean": found.mean if found else None,
                    "std": found.std if found else None,
                    "seeds": self.seeds(row, entry),
                    "noise_floor": self.noise_floor(row, entry),
                    "published": self.published.get((row.label, position)),
                    "run_ids": " ".join(self.run_ids(row, entry)),
                    **(gained if self.gains is not None else {}),
                    **({"group": self.letters(row, entry)} if self.ties is not None else {}),
                }

    def __repr__(self) -> str:
        return fill_template("markdown.md", MARKDOWN, self)

    def _repr_html_(self) -> str:
        return fill_template("html.html", HTML, self)

    def levels(self) -> list[list[tuple[str, int, int]]]:
        """Return the headings above the metrics, level by level: (text, first, last column)."""
        levels = []
        for depth in range(1, 1 + min(len(entry.groups) for entry in self.columns)):
            numbered = groupby(enumerate(self.columns), key=lambda pair: pair[1].groups[:depth])
            spans = [(prefix[-1], [place for place, _ in group]) for prefix, group in numbered]
            levels.append([(text, places[0], places[-1]) for text, places in spans])
        return levels

    def messages(self) -> list[str]:
        """Return the full texts of notices of which the cells in a terminal show a short form."""
        found = []
        for row in self.rows:
            start = 0
            for cell in self.line(row):
                if isinstance(cell, Notice) and cell.text != cell.short:
                    entry = self.columns[start]
                    place = " / ".join(entry.groups) or ", ".join(entry.tasks)
                    found.append(f"{row.label} on {place}: {cell.text}")
                start += cell.span
        return found

    def noise_floor(self, row: Row, entry: TableColumn) -> float | None:
        """Return the average figure of a perfectly calibrated network, or None if unknown."""
        floors = [floor for metric in entry.metrics if (floor := floor_of(metric))]
        whole = len(floors) == len(entry.metrics)
        found = self._mean(row, entry.tasks, floors) if whole else None
        return found.mean if found else None

    def line(self, row: Row) -> tuple[Cell | Notice, ...]:
        """Return a row's cells; a notice replaces all columns that it spans."""
        cells: list[Cell | Notice] = []
        for span in self.spans:
            notice = self.notice(row, self.columns[span[0]])
            if notice is not None:
                cells.append(notice._replace(span=len(span)))
            else:
                cells += [self._cell(row, position) for position in span]
        return tuple(cells)

    def notice(self, row: Row, entry: TableColumn) -> Notice | None:
        """Return why a cell has no figure; None if all of its studies have test figures."""
        sources = self.sources(row, entry.tasks)
        if not sources:
            return _outcome(None)
        found = [notice for source in sources if (notice := _outcome(self.results.get(source)))]
        shorts = [notice.short for notice in found]
        if not found or len(sources) == 1 or shorts == ["not run"] * len(sources):
            return found[0] if found else None
        listing = ", ".join(f"{shorts.count(s)} {s}" for s in dict.fromkeys(shorts))
        details = dict.fromkeys(notice.text for notice in found if notice.text != notice.short)
        whole = f"of {len(sources)}: {listing}"
        return Notice(whole, "; ".join([whole, *details]))

    def run_ids(self, row: Row, entry: TableColumn) -> list[str]:
        """Return the ids of the tracked runs behind a cell's figure."""
        found = (self.results.get(source) for source in self.sources(row, entry.tasks))
        return [run for result in found if result for run in result.run_ids]

    @property
    def calibrates(self) -> bool:
        """Whether any recipe trains a network and ends in a calibrator."""
        parts = (recipe.rpartition("+") for recipe in self.recipes)
        spaces = (space for method, _, last in parts if method for space in known_spaces(last))
        return any(space.kind == "calibrators" for space in spaces)

    def notes(self) -> list[str]:
        """Return the lines below the table, such as the meaning of signs, and failed trials."""
        parts = (
            self._signs(),
            self.remarks,
            self._sweeps(),
            self._codes(),
            self.copies(),
            self._failures(),
            self._runs(),
        )
        return [*chain.from_iterable(parts)]

    def compared_with(self, baseline: str) -> ComparisonTable:
        """Return the table with each figure's difference from a row, named by label or recipe."""
        found = [row for row in self.rows if row.label == baseline or row.recipes == (baseline,)]
        if not found:
            labels = ", ".join(row.label for row in self.rows)
            raise InputError(f"baseline: no row is named {baseline!r}; rows are {labels}")
        by_tasks = {row.tasks: row.label for row in found}
        rows = tuple(
            replace(row, baseline="" if row in found else by_tasks.get(row.tasks, found[0].label))
            for row in self.rows
        )
        return replace(self, rows=rows)

    def sorted_by(self, metric: str) -> ComparisonTable:
        """Return the table with the best row first, by a metric's mean over all tasks.

        Tasks without any figure (in a layout that was run in part) are ignored. Rows without a
        figure on one of the remaining tasks come last, in their previous order.
        """
        shown = column(metric)

        def measured(task: str) -> bool:
            return any(self._mean(row, (task,), (metric,)) is not None for row in self.rows)

        tasks = tuple(filter(measured, self.tasks))

        def key(row: Row) -> float:
            found = self._mean(row, tasks, (metric,)) if tasks else None
            if found is None or not math.isfinite(found.mean):
                return math.inf
            return -found.mean if shown.higher else found.mean

        return replace(self, rows=tuple(sorted(self.rows, key=key)))

    def sources(self, row: Row, tasks: Sequence[str]) -> list[tuple[str, str]]:
        """Return (recipe, task) of each study behind a row's figure on some tasks."""
        kept = [task for task in tasks if row.tasks is None or task in row.tasks]
        return [(recipe, task) for task in kept for recipe in row.recipes]

    def _seeds(self, recipe: str, task: str, metric: str) -> tuple[float, ...]:
        result = self.results.get((recipe, task))
        if result is None or result.status != "finished":
            return ()
        if metric == "seconds":
            return result.seconds
        return tuple(seed[metric] for seed in result.test if metric in seed)

    def _mean(self, row: Row, tasks: Sequence[str], metrics: Sequence[str]) -> Summary | None:
        sources = self.sources(row, tasks)
        found = [self._seeds(*source, metric) for source in sources for metric in metrics]
        if not found or not all(found):
            return None
        if len({len(seeds) for seeds in found}) == 1:
            return _summary([sum(values) / len(found) for values in zip(*found, strict=True)])
        return Summary(sum(sum(seeds) / len(seeds) for seeds in found) / len(found), None)

    def _cell(self, row: Row, position: int) -> Cell:
        entry = self.columns[position]
        found, sources = self.figure(row, entry), self.sources(row, entry.tasks)
        floor = self.noise_floor(row, entry) if self.floor else None
        show, published = entry.shown.show, self.published.get((row.label, position))
        floors = [] if floor is None else [f"(floor {show(floor)})"]
        asides = (*floors, *([] if published is None else [f"[paper {show(published)}]"]))
        if found is None:
            return Cell("–", asides=asides)
        same = self._repeated.get(sources[0]) if len(sources) == 1 else None
        marks = (same and f"= {same}", self.letters(row, entry))
        asides = (*filter(None, marks), *asides)
        text = show(found.mean)
        best, second = self._leaders[position]
        marked = math.isfinite(found.mean) and not self._useless.keys() & {*sources}
        mark = {best: "best", second: "second"}.get(text, "") if marked else ""
        inside = INSIDE if floor is not None and found.mean <= floor else ""
        whole = text if found.std is None else f"{text} ± {show(found.std)}"
        gain = self.gain(row, entry)
        if gain is not None:
            return Cell(whole + inside, mark, *_shown_gain(gain, entry.shown, asides))
        change, tone = self._change(row, entry, found.mean, floor)
        return Cell(whole + inside, mark, change, tone, asides)

    def gain(self, row: Row, entry: TableColumn) -> Gain | None:
        """Return a cell's gain by the search; None if unknown, or if the cell is a mean."""
        sources = self.sources(row, entry.tasks)
        if self.gains is None or len(sources) != 1 or len(entry.metrics) != 1:
            return None
        return self.gains.get((*sources[0], entry.metrics[0]))

    def letters(self, row: Row, entry: TableColumn) -> str:
        """Return the letters of a cell's groups; empty if unknown, or if the cell is a mean."""
        sources = self.sources(row, entry.tasks)
        if self.ties is None or len(sources) != 1 or len(entry.metrics) != 1:
            return ""
        recipe, task = sources[0]
        found = self.ties.get((task, entry.metrics[0]))
        return found.letters.get(recipe, "") if found else ""

    @cached_property
    def _repeated(self) -> dict[tuple[str, str], str]:
        """Maps recipe and task to an earlier recipe with the same scores on every seed."""
        first: dict[tuple[object, ...], str] = {}
        found: dict[tuple[str, str], str] = {}
        for result in self._used:
            known = all({"nll", "brier"} <= {*seed} for seed in result.test)
            if result.status != "finished" or not known:
                continue
            seeds = (tuple((k, round(v, 5)) for k, v in sorted(s.items())) for s in result.test)
            key = (result.task, *seeds)
            other = first.setdefault(key, result.recipe)
            if other != result.recipe and result.test:
                found[result.recipe, result.task] = other
        return found

    def _change(
        self, row: Row, entry: TableColumn, mean: float, floor: float | None
    ) -> tuple[str, str]:
        """Return the difference from the baseline's row, and whether that is better or worse."""
        baseline = next((other for other in self.rows if other.label == row.baseline), None)
        reference = self.figure(baseline, entry) if baseline is not None else None
        if baseline is None or reference is None or entry.shown.neutral:
            return "", ""
        change = mean - reference.mean
        if not math.isfinite(change):
            return "", ""
        text = entry.shown.show_change(change)
        if floor is not None:
            floor = max(floor, self.noise_floor(baseline, entry) or 0)
            if abs(change) <= floor:
                return f"{SIMILAR} {text}", ""
        if float(text) == 0:
            return text, ""
        return text, "better" if (change > 0) == entry.shown.higher else "worse"

    @cached_property
    def _leaders(self) -> list[tuple[str | None, str | None]]:
        """The best and second-best printed figure of each column, or None."""
        leaders: list[tuple[str | None, str | None]] = []
        for entry in self.columns:
            figures = (
                self.figure(row, entry)
                for row in self.rows
                if not entry.shown.neutral
                and not self._useless.keys() & {*self.sources(row, entry.tasks)}
            )
            means = [figure.mean for figure in figures if figure and math.isfinite(figure.mean)]
            texts = sorted({*map(entry.shown.show, means)}, key=float, reverse=entry.shown.higher)
            best, second, *_ = [*texts, None, None]
            leaders.append((best, second))
        return leaders

    @cached_property
    def _useless(self) -> dict[tuple[str, str], str]:
        """Maps recipe and task to the best recipe, if that has over twice the accuracy."""
        accuracy: dict[str, dict[str, float]] = {}
        for result in self._used:
            if own := [seed["acc"] for seed in result.test if "acc" in seed]:
                accuracy.setdefault(result.task, {})[result.recipe] = statistics.fmean(own)
        found: dict[tuple[str, str], str] = {}
        for task, means in accuracy.items():
            best = max(means, key=means.__getitem__)
            lost = (recipe for recipe, mean in means.items() if mean < means[best] / 2)
            found |= {(recipe, task): best for recipe in lost}
        return found

    @cached_property
    def _used(self) -> list[StudyResult]:
        """The results behind the cells, row by row."""
        cells = product(self.rows, self.columns)
        sources = chain.from_iterable(self.sources(row, entry.tasks) for row, entry in cells)
        return [self.results[pair] for pair in dict.fromkeys(sources) if pair in self.results]

    def _signs(self) -> Iterator[str]:
        counts = {len(result.test) for result in self._used if result.test}
        if max(counts, default=1) > 1:
            seeds = str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
            yield f"mean ± sample standard deviation over {seeds} seeds{self._of_seeds()}"
        for other in dict.fromkeys(self._repeated.values()):
            yield f"= {other}: equal to {other} in every figure of every seed"
        places = [
            ((r.dataset, r.model), part) for r in self._used for part in r.configuration.items()
        ]
        spaces = [
            (part, space, own, place)
            for place, (part, own) in places
            for space in known_spaces(part)
        ]
        calibrators = [found for found in spaces if found[1].kind == "calibrators"]
        fits = {(part, space.fits_on_training(own)) for part, space, own, _ in calibrators}
        training = sorted(part for part, on_training in fits if on_training)
        if training:
            yield f"calibrators fitted on the training rows of the networks: {', '.join(training)}"
        if self.calibrates and not 0 < len(training) == len(fits):
            yield (
                "calibrators were fitted on the same validation rows that selected the "
                "hyper-parameters"
            )
        ours = {
            f"{part}.{name}"
            for part, space, own, place in spaces
            for name in space.own_values(own, *place)
        }
        if ours:
            yield f"not from a paper (our defaults): {', '.join(sorted(ours))}"
        baselines = {row.baseline: row.label for row in self.rows if row.baseline}
        if baselines:
            base, label = next(iter(baselines.items()))
            several = f"each row's baseline, such as {base} for {label}"
            other = f"row {base}" if len(baselines) == 1 else several
            yield f"in parentheses: the difference from {other}"
        if self.gains is not None:
            yield from self._of_gains()
        if self.ties is not None:
            yield from self._of_ties(self.ties)
        if self.floor:
            yield (
                "floor: the average figure of a perfectly calibrated network with the same "
                "confidences on this test data"
                + (f"; {INSIDE}: the figure is not above it" if self._shows(INSIDE) else "")
                + (f"; {SIMILAR}: the difference is not above it" if self._shows(SIMILAR) else "")
            )

    def _shows(self, word: str) -> bool:
        """Return True if a sign or word is printed with a figure of the table."""
        cells = chain.from_iterable(map(self.line, self.rows))
        return any(word in cell.text + cell.change for cell in cells if isinstance(cell, Cell))

    def _of_seeds(self) -> str:
        """Return a remark on the seeds: whether splits vary and the search used one of them."""
        known = [r for r in self._used if r.searched_predictions and r.searched]
        own = {result.searched_predictions in result.predictions for result in known}
        splits = " and splits" if any(r.varied for r in self._used) else ""
        if own == {True}:
            return f"{splits} (including the seed used for the search)"
        return f"{splits} (none used for the search)" if own == {False} else splits

    def _of_ties(self, ties: Mapping[tuple[str, str], Grouping]) -> Iterator[str]:
        """Yield the meaning of the letters, and the sample that would separate the best recipes."""
        single = any(found.seeds == 1 for found in ties.values())
        yield (
            "recipes that share a letter cannot be told apart on the same task by the same metric "
            "(all pairs, Holm's correction at 5 %; "
            + ("test rows vary, not seeds)" if single else "seeds and test rows vary)")
        )
        for (task, metric), found in ties.items():
            if found.note:
                yield f"{column(metric).label} on {task}: {found.note}"

    def _of_gains(self) -> Iterator[str]:
        """Yield notes on the gains of the search, and on rows without a known gain."""
        yield (
            "in parentheses: how far the search of the recipe's last stage changed the figure of "
            "the published default, on the seed used for the search, with the 95 % interval over "
            "test data"
            + (f"; {KEPT}: the published default was chosen" if self._shows(KEPT) else "")
            + (f"; {SIMILAR}: not above the noise floor" if self._shows(SIMILAR) else "")
        )
        known = {pair[:2] for pair in self.gains or ()}
        lacking = [r for r in self._used if (r.recipe, r.task) not in known and r.test]
        unsearched = [result for result in lacking if not result.searched]
        if unsearched:
            yield f"without a search: {_named(unsearched)}"
        unknown = [result for result in lacking if result not in unsearched]
        if unknown:
            yield (
                "the published default failed or was not measured (run the sweep again to measure "
                f"it): {_named(unknown)}"
            )

    def _sweeps(self) -> Iterator[str]:
        """Yield the sweeps behind the figures, if several, and how these differ."""
        names = dict.fromkeys(result.sweep for result in self._used)
        if len(names) > 1:
            codes = {result.code for result in self._used if result.code}
            data = {(r.task, r.fingerprint) for r in self._used if r.fingerprint}
            found = [f"from the sweeps {', '.join(names)}"]
            found += ["their code differs"] if len(codes) > 1 else []
            found += ["their data differ"] if len(data) > len({task for task, _ in data}) else []
            found += self._plugins()
            yield "; ".join(found)

    def _plugins(self) -> Iterator[str]:
        sweeps: dict[str, dict[str, str]] = {}
        for result in self._used:
            for name, code in result.plugins.items():
                sweeps.setdefault(name, {})[result.sweep] = code[:12]
        for name, codes in sweeps.items():
            if len({*codes.values()}) > 1:
                listing = ", ".join(f"{code} in {sweep}" for sweep, code in codes.items())
                yield f"the code of plugin {name} differs: {listing}"

    def _codes(self) -> Iterator[str]:
        """Yield which code computed which rows, unless the same code computed all."""
        rows: dict[str, dict[str, None]] = {}
        for result in self._used:
            for code in result.computed_by:
                rows.setdefault(code, {})[f"{result.recipe} on {result.task}"] = None
        if len(rows) > 1:
            parts = (f"{code[:12]} {', '.join(names)}" for code, names in rows.items())
            yield f"computed by different code: {'; '.join(parts)}"

    def copies(self) -> list[str]:
        """Return notes on data rows in two parts of a task's data, such as train and test."""
        lines = (f"{result.task}: {line}" for result in self._used for line in result.copies)
        return [*dict.fromkeys(lines)]

    def _failures(self) -> Iterator[str]:
        stopped = [result for result in self._used if result.status == "interrupted"]
        yield from dict.fromkeys(f"sweep {own.sweep}: {own.reason}" for own in stopped)
        for result in self._used:
            lost = sum(charge > CHARGED for charge in result.charged)
            if lost:
                seeds = f"{lost} of {many(len(result.charged), 'seed')}"
                lost_on = f"lost more validation accuracy than allowed on {seeds}"
                yield f"{result.recipe} on {result.task}: {lost_on}"
            if best := self._useless.get((result.recipe, result.task)):
                lost_to = f"less than half of the accuracy of {best}, so never marked as best"
                yield f"{result.recipe} on {result.task}: {lost_to}"
            yield from _collapsed(result)
            if result.status == "finished" and result.trials_failed:
                yield f"{result.recipe} on {result.task}: {_failed_trials(result)} failed"
        for trials, stopped in _grouped(self._used).items():
            yield f"{_named(stopped)}: search stopped after {trials} (too little left to gain)"

    def _runs(self) -> Iterator[str]:
        for result in self._used if self.runs else ():
            listing = ", ".join(result.run_ids) or "none"
            yield f"runs of {result.recipe} on {result.task} (sweep {result.sweep}): {listing}"


def _shown_gain(
    gain: Gain, shown: Column, asides: tuple[str, ...]
) -> tuple[str, str, tuple[str, ...]]:
    """Return the change, tone and asides of a cell with a gain."""
    if gain.kept:
        return KEPT, "", asides
    ends = f"[{shown.show_change(gain.low)}, {shown.show_change(gain.high)}]"
    change = f"{SIMILAR} " * gain.similar + shown.show_change(gain.value)
    side = "better" if (gain.value > 0) == shown.higher else "worse"
    return change, side if gain.is_clear else "", (ends, *asides)


def _summary(values: Sequence[float]) -> Summary | None:
    if not values:
        return None
    if not all(map(math.isfinite, values)):
        return Summary(sum(values) / len(values), None)  # NaN or infinity of one seed must show
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std)


def _outcome(result: StudyResult | None) -> Notice | None:
    """Return why a study has no figures, or None if it has figures."""
    if result is None:
        return Notice("not run", "not run")
    if result.status == "failed":
        reason = f": {result.reason}" if result.reason else ""
        return Notice("failed", f"failed ({_failed_trials(result)}){reason}")
    if result.status == "running":
        counts = f"{many(result.trials_finished, 'trial')} finished, {result.trials_failed} failed"
        return Notice("running", f"running ({counts})")
    if result.status == "interrupted":
        return Notice("interrupted", "interrupted")
    return None if result.test else Notice("no figures", "finished, without test figures")


def _collapsed(result: StudyResult) -> Iterator[str]:
    """Yield a note if MaC-Cal's masks ended with all weights or none."""
    adaptive = [v for v in result.configuration.values() if v.get("sparsity", "fixed") != "fixed"]
    for q in (0, 1):
        seeds = result.q.count(q)
        if seeds and adaptive:
            keeps = (adaptive[-1]["q_role"] == "keep") == (q == 1)
            kept = "every weight, as in a plain classifier" if keeps else "none"
            yield (
                f"{result.recipe} on {result.task}: q collapsed to {q} on {seeds} of "
                f"{many(len(result.q), 'seed')}: masks keep {kept}"
            )


def _named(results: Sequence[StudyResult]) -> str:
    several = len({result.task for result in results}) > 1
    return ", ".join(f"{r.recipe} on {r.task}" if several else r.recipe for r in results)


def _grouped(results: Sequence[StudyResult]) -> dict[str, list[StudyResult]]:
    """Return the studies whose search stopped early, by the number of trials."""
    found: dict[str, list[StudyResult]] = {}
    for result in results:
        if result.stopped:
            found.setdefault(f"{result.stopped} of {result.trials} trials", []).append(result)
    return found


def _failed_trials(result: StudyResult) -> str:
    return f"{result.trials_failed} of {many(result.ended, 'trial')}"
