"""Formats figures as text; ``FILTERS`` are filters for the templates of pages."""

import math
import time

from orchestrator.tables.columns import Column
from trainables.common.words import duration, many

MEMORY = 2**20


def decimal(value: float, digits: int = 1) -> str:
    """Return a figure with a fixed number of decimals."""
    return f"{value:.{digits}f}"


def percent(fraction: float, digits: int = 2) -> str:
    """Return a fraction in percent, without its unit."""
    return decimal(100 * fraction, digits)


def signed(value: float, digits: int = 4, factor: float = 1) -> str:
    """Return a difference with its sign."""
    return f"{factor * value:+.{digits}f}"


def short(value: object, digits: int = 4) -> str:
    """Return a parameter as text; floats have ``digits`` significant digits."""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def spread(std: float | None, shown: Column) -> str:
    """Return a standard deviation with its ±, or an empty string for None."""
    return "" if std is None else f"±{shown.show(std)}"


def moment(seconds: float) -> str:
    """Return a time (seconds since 1970) in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def measured(metric: str, value: float | None) -> str:
    """Return a figure of any metric with its unit, ``-`` for None."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if metric == "peak_memory":
        return f"{value / MEMORY:.0f} MB"
    if metric.endswith("_seconds"):
        return f"{value:.2f} s"
    return decimal(value, 0 if metric == "images_per_second" else 4)


FILTERS = {
    each.__name__: each
    for each in (decimal, duration, many, moment, percent, short, signed, spread)
}
