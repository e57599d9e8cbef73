"""A comparison table as text: terminal, Markdown, CSV, LaTeX, HTML.

Names and reasons come from users and from exceptions, so each renderer escapes every word it did
not write itself.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from orchestrator._columns import COLUMNS
from orchestrator._table import INSIDE, Cell, ComparisonTable, Notice
from orchestrator.results import StudyResult

__all__ = ["RENDERERS", "to_rich"]

Escape = Callable[[str], str]


def one_line(text: str) -> str:
    """Return text without line breaks, control characters and runs of blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# Terminal

STYLES = {"": "", "best": "bold", "second": "underline"}
TONES = {"": "dim", "better": "green", "worse": "red"}
UNBOUNDED = 10_000


def to_rich(table: ComparisonTable) -> RenderableType:
    """Return the table for a rich console: one block for each first heading, notes below.

    Where a block is wider than the console, standard deviations give way to it, then it is split.
    """
    parts: list[RenderableType] = [_Block(table, spans) for spans in _blocks(table)]
    lines = [*_messages(table), *table.notes()]
    return Group(*parts, *(Text(one_line(line), style="dim") for line in lines))


def _blocks(table: ComparisonTable) -> Iterator[list[tuple[int, ...]]]:
    """Yield the spans of columns that share their first heading."""
    for _, group in groupby(table.spans, key=lambda span: table.columns[span[0]].groups[:1]):
        yield list(group)


class _Block:
    """Some columns of a table, fitted to the console that shows them."""

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
            yield Text("this terminal is too narrow for the standard deviations", style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.full)


def _without_deviation(text: str) -> str:
    figure, _, deviation = text.partition(" ± ")
    return figure + (INSIDE if deviation.endswith(INSIDE) else "")


def _rich_block(table: ComparisonTable, spans: list[tuple[int, ...]], shorten: Escape) -> Table:
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
    """Yield the cells at some positions; a notice of several columns leaves the others empty."""
    start = 0
    for entry in line:
        width = entry.span if isinstance(entry, Notice) else 1
        if start in positions:
            yield entry
            yield from [Cell("")] * (width - 1)
        start += width


def _headings(columns: Sequence[tuple[str, ...]]) -> tuple[str, list[str]]:
    """Return what all columns share as a title, and the rest of each, level by level."""
    levels = [[one_line(text) for text in level] for level in zip(*columns, strict=True)]
    last = len(levels) - 1
    shared = [
        len(set(level)) == 1 and (i == 0 < last or len(columns) > 1)
        for i, level in enumerate(levels)
    ]
    if all(shared):
        shared[last] = False
    title = " · ".join(level[0] for level, same in zip(levels, shared, strict=True) if same)
    rest = [level for level, same in zip(levels, shared, strict=True) if not same]
    return title, ["\n".join(parts) for parts in zip(*rest, strict=True)]


def _rich_cell(cell: Cell | Notice, shorten: Escape) -> Text:
    if isinstance(cell, Notice):
        return Text(cell.short, style="dim italic")
    text = Text(shorten(cell.text), style=STYLES[cell.mark])
    beside = [(f" ({cell.change})", TONES[cell.tone])] if cell.change else []
    beside += [(f" {aside}", "dim") for aside in cell.asides]
    return Text.assemble(text, *beside) if beside else text


def _messages(table: ComparisonTable) -> Iterator[str]:
    """Yield in full what the narrow cells of a terminal only name."""
    for row in table.rows:
        start = 0
        for cell in table.line(row):
            if isinstance(cell, Notice) and cell.text != cell.short:
                entry = table.columns[start]
                place = " / ".join(entry.groups) or ", ".join(entry.tasks)
                yield f"{row.label} on {place}: {cell.text}"
            start += cell.span if isinstance(cell, Notice) else 1


def render_terminal(table: ComparisonTable) -> str:
    """Return plain text as wide as the table needs; ``to_rich`` is for a live console."""
    shown = to_rich(table)
    console = Console(file=io.StringIO(), width=UNBOUNDED, color_system=None)
    width = Measurement.get(console, console.options, shown).maximum
    with console.capture() as capture:
        console.print(shown, width=max(width, 1))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


# Markdown

MARKDOWN = {character: f"\\{character}" for character in "\\`*_[]<>|~$&"}


def render_markdown(table: ComparisonTable) -> str:
    """Return a GitHub table; best in bold, second underlined."""
    escape = _escaper(MARKDOWN)
    alone = len({entry.groups for entry in table.columns}) == 1
    heads = [
        ": ".join([*map(escape, () if alone else entry.groups), escape(entry.shown.heading)])
        for entry in table.columns
    ]
    groups = table.columns[0].groups
    lines = [f"**{escape(' / '.join(groups))}**", ""] if alone and groups else []
    lines += [_pipes(["recipe", *heads]), _pipes(["---", *("---:" for _ in heads)])]
    for row in table.rows:
        cells = (text for cell in table.line(row) for text in _markdown_cells(cell, escape))
        lines.append(_pipes([escape(row.label), *cells]))
    for note in table.notes():
        lines += ["", escape(note)]
    return "\n".join(lines) + "\n"


def _markdown_cells(cell: Cell | Notice, escape: Escape) -> list[str]:
    if isinstance(cell, Notice):
        return [escape(cell.text)] + [""] * (cell.span - 1)
    return [_marked(cell, "**{}**", "<ins>{}</ins>", escape)]


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


# LaTeX

LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    "†": r"$\dagger$",
    "≈": r"$\approx$",
    "·": r"$\cdot$",
    "λ": r"$\lambda$",
    "[": "{[}",
    "]": "{]}",
}


def render_latex(table: ComparisonTable) -> str:
    """Return a ``tabular`` for the booktabs package; reasons of failures stand below it."""
    escape = _escaper(LATEX)
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        *(line for level in _levels(table) for line in _latex_level(level, escape)),
        _ampersands(["recipe", *(escape(entry.shown.heading) for entry in table.columns)]),
        r"\midrule",
    ]
    for row in table.rows:
        cells = (_latex_cell(cell, escape) for cell in table.line(row))
        lines.append(_ampersands([escape(row.label), *cells]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [*_messages(table), *table.notes()]
    lines += [rf"\par{{\footnotesize {escape(note)}}}" for note in notes]
    return "\n".join(lines) + "\n"


def _levels(table: ComparisonTable) -> list[list[tuple[str, int]]]:
    """Return the headings above the metrics, outermost first, each with its number of columns."""
    depth = min(len(entry.groups) for entry in table.columns)
    return [
        [
            (prefix[-1], sum(1 for _ in group))
            for prefix, group in groupby(entry.groups[:level] for entry in table.columns)
        ]
        for level in range(1, depth + 1)
    ]


def _latex_level(level: Sequence[tuple[str, int]], escape: Escape) -> tuple[str, str]:
    """Return one row of headings, and the rules below it."""
    spans = [rf"\multicolumn{{{width}}}{{c}}{{{escape(text)}}}" for text, width in level]
    ends = list(accumulate((width for _, width in level), initial=1))
    rules = [rf"\cmidrule(lr){{{left + 1}-{right}}}" for left, right in pairwise(ends)]
    return _ampersands(["", *spans]), " ".join(rules)


def _latex_cell(cell: Cell | Notice, escape: Escape) -> str:
    if isinstance(cell, Notice):
        return rf"\multicolumn{{{cell.span}}}{{l}}{{\emph{{{escape(cell.short)}}}}}"
    return _marked(cell, r"\textbf{{{}}}", r"\underline{{{}}}", escape)


def _ampersands(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


# HTML


def render_html(table: ComparisonTable) -> str:
    """Return a ``table`` element and its notes, without style; gains bear a class."""
    escape, levels = _escaper({}, html.escape), _levels(table)
    corner = f'<th rowspan="{len(levels) + 1}">recipe</th>'
    lines = ["<table>", "<thead>"]
    for level in levels:
        spans = (f'<th colspan="{width}">{escape(text)}</th>' for text, width in level)
        lines.append(f"<tr>{corner}{''.join(spans)}</tr>")
        corner = ""
    heads = (f"<th>{escape(entry.shown.heading)}</th>" for entry in table.columns)
    lines += [f"<tr>{corner}{''.join(heads)}</tr>", "</thead>", "<tbody>"]
    for row in table.rows:
        cells = "".join(_html_cell(cell, escape) for cell in table.line(row))
        lines.append(f"<tr><th>{escape(row.label)}</th>{cells}</tr>")
    lines += ["</tbody>", "</table>", *(f"<p>{escape(note)}</p>" for note in table.notes())]
    return "\n".join(lines) + "\n"


def _html_cell(cell: Cell | Notice, escape: Escape) -> str:
    if isinstance(cell, Notice):
        return f'<td colspan="{cell.span}">{escape(cell.text)}</td>'
    text = _marked(cell._replace(change="", asides=()), "<strong>{}</strong>", "<u>{}</u>", escape)
    if cell.change:
        text += f' <span class="{cell.tone or "similar"}">({escape(cell.change)})</span>'
    asides = "".join(f" <small>{escape(aside)}</small>" for aside in cell.asides)
    return f"<td>{text}{asides}</td>"


# CSV


def render_csv(table: ComparisonTable) -> str:
    """Return everything known of each study, or of each cell of a layout, as fractions."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows(_cell_lines(table) if table.layout else _study_lines(table))
    return stream.getvalue()


def _study_lines(table: ComparisonTable) -> Iterator[list[object]]:
    """Yield a head, then one line a recipe and task."""
    results = [
        table.results[recipe, task]
        for recipe in table.recipes
        for task in table.tasks
        if (recipe, task) in table.results
    ]
    suites = {name for result in results for seed in result.test for name in seed if "/" in name}
    metrics = [*COLUMNS, *sorted(suites)]
    figures = [f"{metric}_{part}" for metric in metrics for part in ("mean", "std")]
    head = ["sweep", "task", "recipe", "status", "trials_finished", "trials_failed", "reason"]
    head += ["seeds", *figures, *(f"validation_{metric}" for metric in COLUMNS)]
    yield [*head, "configuration", "run_ids"]
    for result in results:
        yield _study_line(table, result, metrics)


def _study_line(
    table: ComparisonTable, result: StudyResult, metrics: Sequence[str]
) -> list[object]:
    line: list[object] = [_harmless(text) for text in (result.sweep, result.task, result.recipe)]
    line += [result.status, result.trials_finished, result.trials_failed, _harmless(result.reason)]
    line.append(len(result.test))
    for metric in metrics:
        line += table.summary(result.recipe, result.task, metric) or (None, None)
    line += [result.validation.get(metric) for metric in COLUMNS]
    line += [json.dumps(result.configuration, sort_keys=True, default=str)]
    return [*line, " ".join(result.run_ids)]


CELL_HEAD = ("layout", "row", "recipes", "column", "tasks", "metrics", "status", "mean", "std")


def _cell_lines(table: ComparisonTable) -> Iterator[list[object]]:
    """Yield a head, then one line a row and column."""
    yield [*CELL_HEAD, "noise_floor", "published", "run_ids"]
    for row in table.rows:
        for position, entry in enumerate(table.columns):
            notice, found = table.notice(row, entry), table.figure(row, entry)
            words = [table.layout, row.label, " ".join(row.recipes), " / ".join(entry.headings)]
            words += [" ".join(entry.tasks), " ".join(entry.metrics)]
            words.append(notice.text if notice else "finished" if found else "no figure")
            line: list[object] = [_harmless(text) for text in words]
            line += found or (None, None)
            line += [table.noise_floor(row, entry), table.published.get((row.label, position))]
            yield [*line, " ".join(table.run_ids(row, entry))]


def _harmless(text: str) -> str:
    # a spreadsheet would run a text that begins like a formula
    line = one_line(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


# What they share


def _escaper(replacements: dict[str, str], then: Escape = str) -> Escape:
    table = str.maketrans(replacements)
    return lambda text: then(one_line(text).translate(table))


def _marked(cell: Cell, best: str, second: str, escape: Escape) -> str:
    pattern = {"best": best, "second": second}.get(cell.mark, "{}")
    change = [f"({cell.change})"] if cell.change else []
    return " ".join([pattern.format(escape(cell.text)), *map(escape, (*change, *cell.asides))])


RENDERERS: dict[str, Callable[[ComparisonTable], str]] = {
    "terminal": render_terminal,
    "markdown": render_markdown,
    "csv": render_csv,
    "latex": render_latex,
    "html": render_html,
}
