"""What the scripts' pages have in common: options, setting, tables, and where they are written."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path


def options(doc: str | None, out: str = "Markdown file to write") -> argparse.ArgumentParser:
    """Return a parser of the command line that has ``--out``."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--out", type=Path, help=out)
    return parser


def publish(text: str, out: Path | None) -> None:
    """Print a page, and write it if told where."""
    sys.stdout.write(text)
    if out:
        out.write_text(text, encoding="utf-8")


def setting(*packages: str) -> str:
    """Return cores, and the versions of Python and some packages."""
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
    """Return the lines of a Markdown table; columns after the first ``texts`` ones stand right."""
    rule = ["---"] * texts + ["---:"] * (len(columns) - texts)
    return [row(columns), row(rule), *map(row, rows)]
