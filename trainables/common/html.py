"""Small HTML tables for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; headings and cells are escaped."""
    lines = [
        f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
        for tag, cells in (("th", headings), *(("td", row) for row in rows))
    ]
    return f"<table>{''.join(lines)}</table>"
