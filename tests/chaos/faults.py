"""Does to real sweeps what may go wrong, at random moments, and tells what happened.

As a script: ``python tests/chaos/faults.py --seed 0 --out FILE.md [NAME ...]``.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from lab import FAULTS, Lab, Row

for module in ("fault_company", "fault_stops", "fault_files", "fault_trials"):
    import_module(module)


def table(rows: list[Row], seed: int, seconds: float) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("ray", "torch", "optuna", "mlflow"))
    head = [
        "# Faults: what was done to real sweeps, and what happened",
        "",
        f"{os.cpu_count()} CPU cores, Python {platform.python_version()}, {versions}; random seed "
        f"{seed}; {len(rows)} sweeps disturbed in {seconds / 60:.0f} minutes, "
        f"{sum(bool(row.wrong) for row in rows)} not as they must be.",
        "",
        "Every sweep was run, stopped and resumed by its command. Unless the last column says "
        "otherwise, the sweep's table is byte for byte that of an undisturbed run, the suggestions "
        "are the same, and every trial ended once.",
        "",
        "| fault | what was done | what happened |",
        "| --- | --- | --- |",
    ]
    return "\n".join([*head, *(row.text() for row in rows)]) + "\n"


def seen(chosen: str, lab: Lab) -> Iterator[Row]:
    """Do one fault; what comes unexpected is a row too, and the next fault's turn."""
    try:
        yield from FAULTS[chosen](lab)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the record
        traceback.print_exc()
        yield Row(chosen, "", [], [" ".join(repr(error).split())[:300]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FAULTS)}; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    started, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as name:
        lab = Lab(Path(name), wanted.seed)
        lab.calm()  # Others are disturbed at moments that it tells.
        for chosen in wanted.names or FAULTS:
            for row in seen(chosen, lab):
                rows.append(row)
                sys.stderr.write(row.text() + "\n")
                if wanted.out:
                    wanted.out.write_text(table(rows, wanted.seed, time.monotonic() - started))
    sys.stdout.write(table(rows, wanted.seed, time.monotonic() - started))
    return sum(bool(row.wrong) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
