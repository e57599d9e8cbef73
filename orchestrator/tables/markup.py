"""Templates of Markdown, LaTeX and HTML, and how each escapes a text."""

import html
from collections.abc import Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

MARKDOWN = {character: f"\\{character}" for character in "\\`*_[]<>|~$&"}
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
HTML = {character: html.escape(character) for character in "&<>\"'"}


def one_line(text: str) -> str:
    """Return text without line breaks, control characters and runs of blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def templates(*packages: str, **options: Any) -> Environment:
    """Return the templates of packages, which refuse names that are not given.

    The options are those of Jinja's ``Environment``.
    """
    loader = ChoiceLoader([PackageLoader(name) for name in packages])
    options |= {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=loader, **options)


def fill_template(name: str, escapes: Mapping[str, str], table: Any) -> str:
    """Fill one of the table's templates; its filter ``plain`` escapes a text."""
    # Not Jinja's own brackets: LaTeX is full of them.
    environment = templates(
        "orchestrator.tables",
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        keep_trailing_newline=True,
    )
    characters = str.maketrans(dict(escapes))
    environment.filters["plain"] = lambda text: one_line(text).translate(characters)
    return environment.get_template(name).render(table=table)
