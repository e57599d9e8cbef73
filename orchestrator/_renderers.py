"""A comparison table as text: terminal, Markdown, CSV, LaTeX, HTML.

Names and reasons come from users and from exceptions, so each renderer escapes every word it did
not write itself.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from orchestrator._table import COLUMNS, Cell, ComparisonTable, Notice, column, summarise
from orchestrator.results import StudyResult

__all__ = ["RENDERERS", "to_rich"]

Escape = Callable[[str], str]


def one_line(text: str) -> str:
    """Return text without line breaks, control characters and runs of blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# Terminal

STYLES = {"": "", "best": "bold", "second": "underline"}
UNBOUNDED = 10_000


def to_rich(table: ComparisonTable) -> RenderableType:
    """Return the table for a rich console: one block a task, notes below.

    Where a block is wider than the console, standard deviations give way to it.
    """
    parts: list[RenderableType] = [_Block(table, task) for task in table.tasks]
    lines = [*_messages(table), *table.notes()]
    return Group(*parts, *(Text(one_line(line), style="dim") for line in lines))


class _Block:
    """One task of a table, fitted to the console that shows it."""

    def __init__(self, table: ComparisonTable, task: str) -> None:
        self.full = _rich_block(table, task, lambda text: text.replace(" ± ", "±"))
        self.short = _rich_block(table, task, lambda text: text.partition(" ± ")[0])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(width=UNBOUNDED)
        full, short = (
            Measurement.get(console, unbounded, block).maximum for block in (self.full, self.short)
        )
        if full <= options.max_width or full == short:
            yield self.full
        else:
            yield self.short
            yield Text("this terminal is too narrow for the standard deviations", style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.full)


def _rich_block(table: ComparisonTable, task: str, shorten: Escape) -> Table:
    block = Table(title=Text(one_line(task)), box=SIMPLE_HEAD, padding=(0, 1), title_justify="left")
    block.add_column("recipe", no_wrap=True)
    for metric in table.metrics:
        block.add_column(column(metric).heading, justify="right", no_wrap=True)
    for recipe in table.recipes:
        cells = table.block(recipe, task)
        if isinstance(cells, Notice):
            texts = [Text(cells.short, style="dim italic")]
        else:
            texts = [Text(shorten(cell.text), style=STYLES[cell.mark]) for cell in cells]
        block.add_row(Text(one_line(recipe)), *texts)
    return block


def _messages(table: ComparisonTable) -> Iterator[str]:
    """Yield in full what the narrow cells of a terminal only name."""
    for task in table.tasks:
        for recipe in table.recipes:
            notice = table.block(recipe, task)
            if isinstance(notice, Notice) and notice.text != notice.short:
                yield f"{recipe} on {task}: {notice.text}"


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
    groups = [f"{escape(task)}: " if len(table.tasks) > 1 else "" for task in table.tasks]
    heads = [group + column(metric).heading for group in groups for metric in table.metrics]
    lines = [f"**{escape(table.tasks[0])}**", ""] if len(table.tasks) == 1 else []
    lines += [_pipes(["recipe", *heads]), _pipes(["---", *("---:" for _ in heads)])]
    for recipe in table.recipes:
        cells = (cell for task in table.tasks for cell in _markdown_cells(table, recipe, task))
        lines.append(_pipes([escape(recipe), *cells]))
    for note in table.notes():
        lines += ["", escape(note)]
    return "\n".join(lines) + "\n"


def _markdown_cells(table: ComparisonTable, recipe: str, task: str) -> list[str]:
    cells = table.block(recipe, task)
    if isinstance(cells, Notice):
        return [_escaper(MARKDOWN)(cells.text)] + [""] * (len(table.metrics) - 1)
    return [_marked(cell, "**{}**", "<ins>{}</ins>", str) for cell in cells]


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
    "[": "{[}",
    "]": "{]}",
}


def render_latex(table: ComparisonTable) -> str:
    """Return a ``tabular`` for the booktabs package."""
    escape, wide = _escaper(LATEX), len(table.metrics)
    spans = [rf"\multicolumn{{{wide}}}{{c}}{{{escape(task)}}}" for task in table.tasks]
    starts = [2 + wide * i for i in range(len(table.tasks))]
    rules = [rf"\cmidrule(lr){{{start}-{start + wide - 1}}}" for start in starts]
    heads = [escape(column(metric).heading) for _ in table.tasks for metric in table.metrics]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(heads)}}}",
        r"\toprule",
        _ampersands(["", *spans]),
        " ".join(rules),
        _ampersands(["recipe", *heads]),
        r"\midrule",
    ]
    for recipe in table.recipes:
        cells = (_latex_block(table, recipe, task) for task in table.tasks)
        lines.append(_ampersands([escape(recipe), *cells]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par{{\footnotesize {escape(note)}}}" for note in table.notes()]
    return "\n".join(lines) + "\n"


def _latex_block(table: ComparisonTable, recipe: str, task: str) -> str:
    cells, escape = table.block(recipe, task), _escaper(LATEX)
    if isinstance(cells, Notice):
        return rf"\multicolumn{{{len(table.metrics)}}}{{l}}{{{escape(cells.text)}}}"
    return " & ".join(
        _marked(cell, r"\textbf{{{}}}", r"\underline{{{}}}", escape) for cell in cells
    )


def _ampersands(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


# HTML


def render_html(table: ComparisonTable) -> str:
    """Return a ``table`` element and its notes, without style."""
    escape, wide = _escaper({}, html.escape), len(table.metrics)
    spans = "".join(f'<th colspan="{wide}">{escape(task)}</th>' for task in table.tasks)
    heads = "".join(
        f"<th>{escape(column(metric).heading)}</th>"
        for _ in table.tasks
        for metric in table.metrics
    )
    lines = ["<table>", "<thead>", f'<tr><th rowspan="2">recipe</th>{spans}</tr>']
    lines += [f"<tr>{heads}</tr>", "</thead>", "<tbody>"]
    for recipe in table.recipes:
        cells = "".join(_html_block(table, recipe, task, escape) for task in table.tasks)
        lines.append(f"<tr><th>{escape(recipe)}</th>{cells}</tr>")
    lines += ["</tbody>", "</table>", *(f"<p>{escape(note)}</p>" for note in table.notes())]
    return "\n".join(lines) + "\n"


def _html_block(table: ComparisonTable, recipe: str, task: str, escape: Escape) -> str:
    cells = table.block(recipe, task)
    if isinstance(cells, Notice):
        return f'<td colspan="{len(table.metrics)}">{escape(cells.text)}</td>'
    marked = (_marked(cell, "<strong>{}</strong>", "<u>{}</u>", escape) for cell in cells)
    return "".join(f"<td>{text}</td>" for text in marked)


# CSV


def render_csv(table: ComparisonTable) -> str:
    """Return one line a recipe and task with everything known of it, as fractions."""
    figures = [f"{metric}_{part}" for metric in COLUMNS for part in ("mean", "std")]
    head = ["sweep", "task", "recipe", "status", "trials_finished", "trials_failed", "reason"]
    head += ["seeds", *figures, *(f"validation_{metric}" for metric in COLUMNS)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*head, "configuration", "run_ids"])
    for recipe in table.recipes:
        for task in table.tasks:
            if result := table.results.get((recipe, task)):
                writer.writerow(_csv_row(result))
    return stream.getvalue()


def _csv_row(result: StudyResult) -> list[object]:
    row: list[object] = [_harmless(text) for text in (result.sweep, result.task, result.recipe)]
    row += [result.status, result.trials_finished, result.trials_failed, _harmless(result.reason)]
    row.append(len(result.test))
    for metric in COLUMNS:
        found = summarise([seed[metric] for seed in result.test if metric in seed])
        row += [None, None] if found is None else [found.mean, found.std]
    row += [result.validation.get(metric) for metric in COLUMNS]
    row += [json.dumps(result.configuration, sort_keys=True, default=str), " ".join(result.run_ids)]
    return row


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
    return pattern.format(escape(cell.text))


RENDERERS: dict[str, Callable[[ComparisonTable], str]] = {
    "terminal": render_terminal,
    "markdown": render_markdown,
    "csv": render_csv,
    "latex": render_latex,
    "html": render_html,
}
