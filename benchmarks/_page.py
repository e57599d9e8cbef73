"""Common parts of the benchmark scripts: options, machine, tables, and result pages."""

import argparse
import csv
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

Table = tuple[Sequence[str], Sequence[Sequence[object]]]
"""Columns and rows."""


def options(doc: str | None, out: str = "Markdown file to write") -> argparse.ArgumentParser:
    """Return a command-line parser with the option ``--out``."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--out", type=Path, help=out)
    return parser


def publish(
    question: str,
    lines: Iterable[str],
    place: str,
    out: Path | None,
    files: Mapping[str, Table] = MappingProxyType({}),
) -> None:
    """Print a result page, and write it and its further tables to ``out`` unless that is None.

    The answer, three lines below the question, is written by hand.

    Args:
        question: The heading.
        lines: The table and its explanation.
        place: Hardware and versions.
        out: The Markdown file.
        files: Maps a suffix to a table, which is written next to ``out`` as ``STEMSUFFIX.csv``.
    """
    stem = out.stem if out else "page"
    named = {f"{stem}{suffix}.csv": table for suffix, table in files.items()}
    how = ["", "## How it was measured", "", f"    {_command()}", "", place]
    links = ", ".join(f"[{name}]({name})" for name in named)
    text = "\n".join([f"# {question}", "", *lines, *how, *(["", f"{links}."] if named else [])])
    sys.stdout.write(f"{text}\n")
    if out:
        out.write_text(f"{text}\n", encoding="utf-8")
    for name, (columns, rows) in named.items():
        sys.stdout.write("\n".join(["", f"{name}:", "", *table(columns, rows), ""]))
        if out:
            _write_csv(out.with_name(name), columns, rows)


def _command() -> str:
    """Return the command line without ``--out``, which does not affect the figures."""
    words = sys.argv[1:]
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    plain = str.maketrans("", "", "`*")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([str(cell).translate(plain) for cell in line] for line in (columns, *rows))


def setting(*packages: str) -> str:
    """Return the number of CPU cores, and the versions of Python and ``packages``."""
    versions = (f"{name} {version(name)}" for name in packages)
    python = f"Python {platform.python_version()}"
    return ", ".join([f"{os.cpu_count()} CPU cores", python, *versions])


def load() -> str:
    """Return the machine's load averages."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def row(cells: Iterable[object]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], texts: int = 1) -> list[str]:
    """Return the lines of a Markdown table; columns after the first ``texts`` are right-aligned."""
    rule = ["---"] * texts + ["---:"] * (len(columns) - texts)
    return [row(columns), row(rule), *map(row, rows)]
