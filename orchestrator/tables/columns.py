"""How tables show figures and texts: the column of each metric, templates and escapes."""

import html
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from trainables.common.errors import InputError, known_names, listed_by
from trainables.metrics import METRICS


class Column(NamedTuple):
    """How a metric is shown: heading, factor, decimals, and whether higher or neither is better."""

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
        """Return a fraction as printed, without its unit."""
        return f"{self.factor * fraction:.{self.digits}f}"

    def show_change(self, fraction: float) -> str:
        """Return a difference of two fractions as printed, with its sign."""
        text = f"{self.factor * fraction:+.{self.digits}f}"
        return text.replace("-", "+") if float(text) == 0 else text


SECONDS = Column("Seconds", 1, 1)

DEFAULT_METRICS = ("acc", "ece", "aece", "cwece", "nll")
"""Metrics that a table shows by default."""

SUITE = re.compile(r"[a-z0-9][\w.@+-]*(/[a-z0-9][\w.@+-]*)*")


def shown_names() -> list[str]:
    """Return the names of the metrics that a table can show; suites have ``SUITE/METRIC``."""
    return [*METRICS, "seconds"]


def column(name: str) -> Column:
    """Return the column of a metric: one of ``shown_names``, or ``SUITE/METRIC``.

    Examples are ``cifar10-c/ece`` and ``ood-svhn/auroc``. Suites have no ``seconds``.
    """
    suite, slash, metric = name.rpartition("/")
    if name == "seconds":
        return SECONDS
    if metric not in METRICS or (slash and not SUITE.fullmatch(suite)):
        names = shown_names()
        if not get_close_matches(metric, names):  # The full list does not fit into a line.
            names = [name for name in names if not METRICS.columns([name])]
        known = known_names(metric, names)
        known += f", and SUITE/METRIC for a suite; {listed_by('metrics')}"
        raise InputError(f"unknown metric {name!r}; {known}")
    found = METRICS[metric]
    return Column(
        f"{suite} {found.label}".strip(),
        100 if found.percent else 1,
        found.digits,
        higher=found.better == "higher",
        neutral=found.better == "neither",
    )


def floor_of(metric: str) -> str | None:
    """Return the name of a metric's noise floor, such as ``ece_floor``; None if it has none."""
    floor = f"{metric}_floor"
    return floor if floor.rpartition("/")[2] in METRICS else None


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
    """Return an environment with the templates of packages; undefined names are errors."""
    loader = ChoiceLoader([PackageLoader(name) for name in packages])
    options |= {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=loader, **options)


def fill_template(name: str, escapes: Mapping[str, str], table: Any) -> str:
    """Fill a table template; its filter ``plain`` replaces characters by ``escapes``."""
    # Jinja's usual braces would clash with those of LaTeX.
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
