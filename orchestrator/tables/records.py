"""The cells of a comparison table as plain records: for CSV, JSON and data frames."""

from collections.abc import Iterator
from typing import Any

from orchestrator.tables.table import ComparisonTable


def cell_records(table: ComparisonTable) -> Iterator[dict[str, Any]]:
    """Yield one record a row and column, figures as fractions (NLL and Brier as they are).

    Names of recipes, tasks, metrics and runs are separated by spaces. ``gain`` and ``group`` are
    there if the table has gains and groups.
    """
    for row in table.rows:
        for position, entry in enumerate(table.columns):
            notice, found = table.notice(row, entry), table.figure(row, entry)
            gain = table.gain(row, entry)
            ends = (gain.value, gain.low, gain.high) if gain else (None, None, None)
            gained = dict(zip(("gain", "gain_low", "gain_high"), ends, strict=True))
            yield {
                "layout": table.layout,
                "row": row.label,
                "recipes": " ".join(row.recipes),
                "column": " / ".join(entry.headings),
                "tasks": " ".join(entry.tasks),
                "metrics": " ".join(entry.metrics),
                "status": notice.text if notice else "finished" if found else "no figure",
                "mean": found.mean if found else None,
                "std": found.std if found else None,
                "seeds": table.seeds(row, entry),
                "noise_floor": table.noise_floor(row, entry),
                "published": table.published.get((row.label, position)),
                "run_ids": " ".join(table.run_ids(row, entry)),
                **(gained if table.gains is not None else {}),
                **({"group": table.letters(row, entry)} if table.ties is not None else {}),
            }
