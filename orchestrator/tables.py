"""Comparison tables from study results, in five formats.

``build_table(results)`` arranges, ``render(table, "markdown")`` writes, ``to_rich(table)`` is for a
live terminal. Nothing here reads files or the tracking server.
"""

from __future__ import annotations

from orchestrator._renderers import RENDERERS, to_rich
from orchestrator._table import COLUMNS, ComparisonTable, build_table, column
from trainables.errors import InputError

__all__ = ["COLUMNS", "FORMATS", "ComparisonTable", "build_table", "column", "render", "to_rich"]

FORMATS = tuple(RENDERERS)


def render(table: ComparisonTable, format: str) -> str:
    """Write a table as text.

    Figures are mean ± sample standard deviation over seeds, accuracy and calibration errors in
    percent, NLL and Brier as they are. In each column the best is bold and the second underlined
    (not in plain ``terminal`` text), compared as printed, so equal prints share a mark. ``csv``
    holds plain fractions and every metric.

    Args:
        table: What ``build_table`` returned.
        format: ``terminal``, ``markdown``, ``csv``, ``latex`` or ``html``.

    Raises:
        InputError: If there is no such format.
    """
    if format not in RENDERERS:
        raise InputError(f"unknown format {format!r}; there are: {', '.join(FORMATS)}")
    return RENDERERS[format](table)
