"""Live many histories and record each one, so that the next call goes on where this one ended.

python -m tests.outside 0:400 docs/results/outside-histories.csv --hours 8 --processes 2
"""

import argparse
import csv
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.outside import draw
from tests.outside.door import Door
from tests.outside.history import Broken, History
from tests.outside.services import Services

HEAD = ("seed", "row", "seconds", "commands", "steps", "fault")
STEPS = 6


def recorded(path: Path) -> list[dict[str, str]]:
    """Return the rows of a record, or none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def record(path: Path, row: Iterable[object]) -> None:
    """Append a row to a record, which begins with a header."""
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEAD, row] if fresh else [row])


def lived(seed: int, folder: Path, services: Services) -> tuple[list[object], str]:
    """Live one history; return its record, and its steps if a promise was broken."""
    (folder / "scratch").mkdir(parents=True)
    row, began, fault = draw.row_of(seed), time.monotonic(), ""
    door = Door(folder / "scratch", variables=services.variables(row))
    history = History(row, seed, folder / "history", door)
    try:
        history.live(STEPS)
    except Broken as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001  # A fault of the checker does not end the others.
        fault = f"{type(error).__name__}: {error}"
    finally:
        door.close()
    found = [seed, "; ".join(row.values()), round(time.monotonic() - began), door.count]
    why = next(reversed(fault.strip().splitlines()), "")[:200]
    return [*found, " ".join(history.steps), why], fault


def say(*words: object) -> None:
    """Print words on a line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Live the histories of a range of seeds in several threads, each with its own commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=lambda text: range(*map(int, text.split(":"))))
    parser.add_argument("record", type=Path)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    done = {int(row["seed"]) for row in recorded(options.record)}
    end = time.monotonic() + 3600 * options.hours

    def work(seed: int) -> None:
        if time.monotonic() < end:
            folder = Path(tempfile.mkdtemp(prefix=f"history-{seed}-"))
            row, fault = lived(seed, folder, services)
            record(options.record, row)
            say(*row, fault)
            if not fault:
                shutil.rmtree(folder)

    services = Services()
    seeds = [seed for seed in options.seeds if seed not in done]
    here = [seed for seed in seeds if not services.without & {*draw.row_of(seed).values()}]
    if left_out := len(seeds) - len(here):
        say(f"{left_out} histories are left out: they need SLURM, which is not here (slurm-wlm)")
    try:
        with ThreadPoolExecutor(options.processes) as pool:
            list(pool.map(work, here))
    finally:
        services.close()
    names = [*draw.DIMENSIONS, "also"]
    rows = [row["row"].split("; ") for row in recorded(options.record)]
    say(draw.coverage([dict(zip(names, row, strict=True)) for row in rows]))


if __name__ == "__main__":
    main()
