"""Draws ``demo-table.svg`` from a demo that has finished: ``python docs/render_demo_table.py``."""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

from rich.console import Console

from orchestrator import comparison_table
from orchestrator.sweep.tracking_uri import default_tracking_uri
from orchestrator.tables.make import to_rich

COLUMNS = 72
# The picture takes the reader's own monospace font rather than fetching one.
ADDRESSES = re.compile(r"@font-face\s*\{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)


def main() -> None:
    """Read a sweep's table from the tracking database and write it as SVG."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", default="demo")
    parser.add_argument("--storage", default="calsweep-storage")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("demo-table.svg"))
    arguments = parser.parse_args()
    table = comparison_table(arguments.sweep, tracking_uri=default_tracking_uri(arguments.storage))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(to_rich(table))
    svg = ADDRESSES.sub("", console.export_svg(title="calsweep demo"))
    lines = (line.rstrip() for line in svg.splitlines())
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
