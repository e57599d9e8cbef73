"""How tables show figures and texts: the column of each metric, templates and their escapes."""

import html
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from trainables.common.errors import InputError, known_names, listed_by
from trainables.metrics import METRICS


class Column(NamedTuple):
    """How a metric is shown: heading, factor, decimals, and whether more is better."""

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

    def show_change(self, fraction: float) -> str:
        """Return a difference of two fractions as it is printed, with its sign."""
        text = f"{self.factor * fraction:+.{self.digits}f}"
        return text.replace("-", "+") if float(text) == 0 else text


SECONDS = Column("Seconds", 1, 1)

DEFAULT_METRICS = ("acc", "ece", "aece", "cwece", "nll")
"""What a table shows if nothing else is asked for."""

SUITE = re.compile(r"[a-z0-9][\w.@+-]*(/[a-z0-9][\w.@+-]*)*")


def shown_names() -> list[str]:
    """Return every metric that a table can show; see ``column`` for those of suites."""
    return [*METRICS, "seconds"]


def column(name: str) -> Column:
    """Return how a metric is shown: one of ``shown_names``, or one after a suite's name and ``/``.

    Such as ``cifar10-c/ece`` or ``ood-svhn/auroc``; the cost, ``seconds``, belongs to no suite.
    """
    suite, slash, metric = name.rpartition("/")
    if name == "seconds":
        return SECONDS
    if metric not in METRICS or (slash and not SUITE.fullmatch(suite)):
        names = shown_names()
        if not get_close_matches(metric, names):  # All of them do not fit into a line.
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
    """Return the metric that holds a metric's noise floor, or None where there is none."""
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
    """Return the templates of packages, which refuse names that are not given."""
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
