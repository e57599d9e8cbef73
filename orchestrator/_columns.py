"""How each metric is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from trainables.errors import InputError

__all__ = ["COLUMNS", "DEFAULT_METRICS", "Column", "column", "floor_of"]


class Column(NamedTuple):
    """How a metric is shown: heading, factor, decimals, and whether more is better.

    A noise floor is ``neutral``: neither more nor less of it is better, and none is marked as best.
    """

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


# Brier and NLL are no fractions of anything, so they stay as they are; the class-wise errors shrink
# with the number of classes and get a decimal more.
COLUMNS: Mapping[str, Column] = {
    "acc": Column("Acc", 100, 2, higher=True),
    "nll": Column("NLL", 1, 4),
    "brier": Column("Brier", 1, 4),
    "ece": Column("ECE", 100, 2),
    "aece": Column("AECE", 100, 2),
    "cwece": Column("cwECE", 100, 3),
    "cwaece": Column("cwAECE", 100, 3),
    "mce": Column("MCE", 100, 2),
    "debiased_ece": Column("debiased ECE", 100, 2),
    "smooth_ece": Column("smooth ECE", 100, 2),
    "ece_floor": Column("ECE floor", 100, 2, neutral=True),
    "aece_floor": Column("AECE floor", 100, 2, neutral=True),
    "cwece_floor": Column("cwECE floor", 100, 3, neutral=True),
    "auroc": Column("AUROC", 100, 2, higher=True),
    "fpr95": Column("FPR95", 100, 2),
    "seconds": Column("Seconds", 1, 1),
}
"""Every metric that a table can show; a suite's metric is ``SUITE/METRIC``, see ``column``."""

DEFAULT_METRICS = ("acc", "ece", "aece", "cwece", "nll")
"""What a table shows if nothing else is asked for."""

SUITE = re.compile(r"[a-z0-9][\w.@+-]*(/[a-z0-9][\w.@+-]*)*")


def column(name: str) -> Column:
    """Return how a metric is shown.

    Args:
        name: A name from ``COLUMNS``, or one after a suite's name and ``/``, such as
            ``cifar10-c/ece`` or ``ood-svhn/auroc``. The cost, ``seconds``, belongs to no suite.

    Raises:
        InputError: If there is no such metric.
    """
    suite, slash, metric = name.rpartition("/")
    if metric in COLUMNS and not slash:
        return COLUMNS[metric]
    if metric in COLUMNS and metric != "seconds" and SUITE.fullmatch(suite):
        found = COLUMNS[metric]
        return found._replace(label=f"{suite} {found.label}")
    raise InputError(
        f"unknown metric {name!r}; there are: {', '.join(COLUMNS)}, and SUITE/METRIC for a suite"
    )


def floor_of(metric: str) -> str | None:
    """Return the metric that holds a metric's noise floor, or None where there is none."""
    floor = f"{metric}_floor"
    return floor if floor.rpartition("/")[2] in COLUMNS else None
