"""Output of commands; control characters and markup in texts are escaped."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.box import MARKDOWN, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainables.common.errors import one_line, printable

UNBOUNDED = 10_000
LONGEST = 298  # Maximum characters of a line of ``complain``.


class _PlainConsole(Console):
    """A console that escapes control characters and ignores markup."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the printable form of a text."""
        return super().render_str(printable(text), **options)


def output() -> Console:
    """Return a console on standard output, of unlimited width unless it is a terminal."""
    console = _PlainConsole(soft_wrap=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console


def echo(text: str, nl: bool = True, err: bool = False) -> None:
    """Print a text on standard output, or on standard error."""
    typer.echo(printable(text), nl=nl, err=err)


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: Sequence[str],
    markdown: bool = False,
) -> None:
    """Print a table; columns with headings in ``texts`` are left-aligned."""
    table = Table(box=MARKDOWN if markdown else SIMPLE_HEAD, padding=(0, 1))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in texts else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    output().print(table)


def print_plain(
    headings: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[str] | None = None
) -> None:
    """Print a table without lines; columns in ``texts`` (default: all) are left-aligned."""
    table = Table(box=None)
    for heading in headings:
        left = texts is None or heading in texts
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    output().print(table)


def print_csv(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([headings, *rows])
    echo(stream.getvalue(), nl=False)


def print_json(value: object) -> None:
    """Print plain values as JSON; NaN and infinity become null."""
    typer.echo(json.dumps(_finite(value), indent=2, ensure_ascii=True))


def print_records(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as JSON, an object per row."""
    print_json([dict(zip(headings, row, strict=True)) for row in rows])


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def complain(text: str, command: str = "calsweep") -> None:
    """Print ``command: text`` as one line on standard error."""
    typer.echo(one_line(f"{command}: {text}", LONGEST), err=True)


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if stderr is a terminal; yield a function of (number done, total)."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task(text)
        yield lambda done, total: progress.update(line, completed=done, total=total)
