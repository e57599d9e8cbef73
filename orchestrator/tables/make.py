"""Comparison tables from study results, in six formats; renderers escape every name."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from orchestrator.storage.results import StudyResult
from orchestrator.sweep.tracking_uri import default_tracking_uri
from orchestrator.tables.arrange import build_table, by_pair, select
from orchestrator.tables.columns import HTML, LATEX, MARKDOWN, fill_template, one_line, shown_names
from orchestrator.tables.table import INSIDE, Cell, ComparisonTable, Notice
from trainables.common.errors import InputError
from trainables.metrics import METRICS

# Terminal

STYLES = {"": "", "best": "bold", "second": "underline"}
TONES = {"": "dim", "better": "green", "worse": "red"}
UNBOUNDED = 10_000


def to_rich(table: ComparisonTable) -> RenderableType:
    """Return the table for a rich console: one block per outermost heading, then the notes."""
    blocks = groupby(table.spans, key=lambda span: table.columns[span[0]].groups[:1])
    parts: list[RenderableType] = [_Block(table, list(spans)) for _, spans in blocks]
    lines = [*table.messages(), *table.notes()]
    return Group(*parts, *(Text(one_line(line), style="dim") for line in lines))


class _Block:
    """A group of columns; a narrow console splits it or hides the standard deviations."""

    def __init__(self, table: ComparisonTable, spans: list[tuple[int, ...]]) -> None:
        self.table, self.spans = table, spans
        self.full = _rich_block(table, spans, lambda text: text.replace(" ± ", "±"))
        self.short = _rich_block(table, spans, _without_deviation)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(width=UNBOUNDED)
        full, short = (
            Measurement.get(console, unbounded, block).maximum for block in (self.full, self.short)
        )
        if full <= options.max_width:
            yield self.full
        elif short > options.max_width and len(self.spans) > 1:
            middle = (len(self.spans) + 1) // 2
            yield _Block(self.table, self.spans[:middle])
            yield _Block(self.table, self.spans[middle:])
        elif full == short:
            yield self.full
        else:
            yield self.short
            yield Text("standard deviations are hidden: the terminal is too narrow", style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.full)


def _without_deviation(text: str) -> str:
    figure, _, deviation = text.partition(" ± ")
    return figure + (INSIDE if deviation.endswith(INSIDE) else "")


def _rich_block(
    table: ComparisonTable, spans: list[tuple[int, ...]], shorten: Callable[[str], str]
) -> Table:
    positions = [position for span in spans for position in span]
    title, heads = _headings([table.columns[position].headings for position in positions])
    block = Table(title=Text(title), box=SIMPLE_HEAD, padding=(0, 1), title_justify="left")
    block.add_column("recipe", no_wrap=True)
    for head in heads:
        block.add_column(Text(head), justify="right", no_wrap=True)
    for row in table.rows:
        texts = [_rich_cell(cell, shorten) for cell in _within(table.line(row), positions)]
        block.add_row(Text(one_line(row.label)), *texts)
    return block


def _within(line: Sequence[Cell | Notice], positions: Sequence[int]) -> Iterator[Cell | Notice]:
    """Yield the cells of the columns at ``positions``, with empty cells below a wide notice."""
    start = 0
    for entry in line:
        if start in positions:
            yield entry
            yield from [Cell("")] * (entry.span - 1)
        start += entry.span


def _headings(columns: Sequence[tuple[str, ...]]) -> tuple[str, list[str]]:
    """Return the headings shared by all columns as a title, and each column's other headings.

    Each column keeps at least one heading. Of a single column, only the outermost is in the title.
    """
    levels = [[one_line(text) for text in level] for level in zip(*columns, strict=True)]
    last = len(levels) - 1
    shared = [
        len(set(level)) == 1 and (i == 0 < last or len(columns) > 1)
        for i, level in enumerate(levels)
    ]
    shared[last] &= not all(shared)
    title = " · ".join(level[0] for level, same in zip(levels, shared, strict=True) if same)
    rest = [level for level, same in zip(levels, shared, strict=True) if not same]
    return title, ["\n".join(parts) for parts in zip(*rest, strict=True)]


def _rich_cell(cell: Cell | Notice, shorten: Callable[[str], str]) -> Text:
    if isinstance(cell, Notice):
        return Text(cell.short, style="dim italic")
    text = Text(shorten(cell.text), style=STYLES[cell.mark])
    after = [(f" ({cell.change})", TONES[cell.tone])] if cell.change else []
    after += [(f" {aside}", "dim") for aside in cell.asides]
    return Text.assemble(text, *after) if after else text


def render_terminal(table: ComparisonTable) -> str:
    """Return plain text as wide as the table needs; ``to_rich`` is for a live console."""
    shown = to_rich(table)
    console = Console(file=io.StringIO(), width=UNBOUNDED, color_system=None)
    width = Measurement.get(console, console.options, shown).maximum
    with console.capture() as capture:
        console.print(shown, width=max(width, 1))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


# CSV, JSON


def render_csv(table: ComparisonTable) -> str:
    """Return CSV with one line per study (per cell if there is a layout), as fractions."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows(_cell_lines(table) if table.layout else _study_lines(table))
    return stream.getvalue()


def _study_lines(table: ComparisonTable) -> Iterator[list[object]]:
    pairs = product(table.recipes, table.tasks)
    results = [table.results[pair] for pair in pairs if pair in table.results]
    suites = {name for result in results for seed in result.test for name in seed if "/" in name}
    asked = {*METRICS.columns(METRICS)} - {*table.metrics}
    known = [name for name in shown_names() if name not in asked]
    metrics = [*known, *sorted(suites)]
    figures = [f"{metric}_{part}" for metric in metrics for part in ("mean", "std")]
    gained = list(dict.fromkeys(metric for _, _, metric in table.gains or ()))
    gains = [f"{metric}_gain{part}" for metric in gained for part in ("", "_low", "_high")]
    head = ["sweep", "task", "recipe", "status", "trials_finished", "trials_failed", "reason"]
    head += ["seeds", *figures, *(f"validation_{metric}" for metric in known)]
    tied = list(dict.fromkeys(metric for _, metric in table.ties or ()))
    yield [*head, "configuration", "run_ids", *gains, *(f"{metric}_group" for metric in tied)]
    for result in results:
        line: list[object] = list(map(_harmless, (result.sweep, result.task, result.recipe)))
        line += [result.status, result.trials_finished, result.trials_failed]
        line += [_harmless(result.reason), len(result.test)]
        for metric in metrics:
            line += table.summary(result.recipe, result.task, metric) or (None, None)
        line += [result.validation.get(metric) for metric in known]
        configuration = json.dumps(result.configuration, sort_keys=True, default=str)
        line += [configuration, " ".join(result.run_ids)]
        for metric in gained:
            gain = (table.gains or {}).get((result.recipe, result.task, metric))
            line += (gain.value, gain.low, gain.high) if gain else (None, None, None)
        groups = [(table.ties or {}).get((result.task, metric)) for metric in tied]
        yield [*line, *(group and group.letters.get(result.recipe) for group in groups)]


def _cell_lines(table: ComparisonTable) -> Iterator[list[object]]:
    for number, record in enumerate(table.records()):
        if number == 0:
            yield [*record]
        yield [_harmless(value) if isinstance(value, str) else value for value in record.values()]


def render_json(table: ComparisonTable) -> str:
    """Return rows, columns, cells and notes as JSON; figures that are not finite are null."""
    cells = [{name: _plain(value) for name, value in record.items()} for record in table.records()]
    document = {
        "sweeps": list(dict.fromkeys(result.sweep for result in table.results.values())),
        "rows": [one_line(row.label) for row in table.rows],
        "columns": [one_line(" / ".join(entry.headings)) for entry in table.columns],
        "cells": cells,
        "notes": [one_line(note) for note in table.notes()],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return one_line(value) if isinstance(value, str) else value


def _harmless(text: str) -> str:
    # A spreadsheet would evaluate a text that begins like a formula.
    line = one_line(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


RENDERERS: dict[str, Callable[[ComparisonTable], str]] = {
    "terminal": render_terminal,
    "markdown": partial(fill_template, "markdown.md", MARKDOWN),
    "csv": render_csv,
    "json": render_json,
    "latex": partial(fill_template, "latex.tex", LATEX),
    "html": partial(fill_template, "html.html", HTML),
}


@dataclass(frozen=True)
class TableOptions:
    """The options of ``calsweep table``, described in its help."""

    metrics: Sequence[str] | None = None
    recipes: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    rows: Sequence[str] = ("recipe",)
    layout: str | None = None
    columns: str = "auto"
    published: bool = False
    baseline: str | None = None
    floor: bool = False
    runs: bool = False


def make_table(
    results: Iterable[StudyResult], options: TableOptions | None = None
) -> ComparisonTable:
    """Arrange results, one per recipe and task. Join several sweeps with ``combine`` first."""
    wanted = options or TableOptions()
    chosen = by_pair(select(results, wanted.recipes, wanted.tasks))
    if wanted.layout is None:
        if wanted.published:
            raise InputError("--show published needs --layout, which names the paper's table")
        table = build_table(chosen.values(), wanted.metrics, wanted.rows)
    else:
        if tuple(wanted.rows) != ("recipe",):
            raise InputError("--rows and --layout exclude each other: a layout has its own rows")
        # imports pandas, which reads the published figures
        from orchestrator.tables.layouts import arrange_layout, load_layout

        layout = load_layout(wanted.layout)
        table = arrange_layout(layout, chosen, wanted.metrics, wanted.columns, wanted.published)
    table = replace(table, floor=wanted.floor, runs=wanted.runs)
    return table.compared_with(wanted.baseline) if wanted.baseline else table


def render(table: ComparisonTable, format: str) -> str:
    """Return a table as text.

    Figures are mean ± sample standard deviation over seeds; accuracy and calibration errors are in
    percent. In each column the best is bold and the second underlined (not in plain ``terminal``
    text); figures that are printed alike share a mark. ``csv`` and ``json`` have fractions.
    ``csv`` has one line per study with every metric that is stored or shown (with a layout, one
    line per cell).

    Args:
        table: The result of ``make_table`` or ``build_table``.
        format: ``terminal``, ``markdown``, ``csv``, ``json``, ``latex`` or ``html``.
    """
    if format not in RENDERERS:
        raise InputError(f"unknown format {format!r}; use {', '.join(RENDERERS)}")
    return RENDERERS[format](table)


def comparison_table(
    sweep: str, *, tracking_uri: str | None = None, metrics: Sequence[str] | None = None
) -> ComparisonTable:
    """Build the comparison table of a sweep from the tracking server.

    Args:
        sweep: The sweep's name.
        tracking_uri: The tracking server; see ``default_tracking_uri``.
        metrics: Columns, such as ``acc`` and ``ece``; see ``build_table``.

    Raises:
        InputError: If there is no such sweep or metric.
    """
    from orchestrator.tracking import study_results

    results = study_results(tracking_uri or default_tracking_uri(), sweep)
    return build_table(results, metrics)
