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

HEAD = ("seed", "seconds", "commands", "steps", "fault")
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


def lived(seed: int, folder: Path) -> tuple[list[object], str]:
    """Live one history; return its row and what happened if a promise was broken."""
    (folder / "scratch").mkdir(parents=True)
    door, began, fault = Door(folder / "scratch"), time.monotonic(), ""
    history = History(draw.row_of(seed), seed, folder / "history", door)
    try:
        history.live(STEPS)
    except Broken as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001  # A fault of the checker does not end the others.
        fault = f"{type(error).__name__}: {error}"
    finally:
        door.close()
    row = [seed, round(time.monotonic() - began), door.count, " ".join(history.steps)]
    return [*row, fault.splitlines()[-1][:200] if fault else ""], fault


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
            row, fault = lived(seed, folder)
            record(options.record, row)
            say(*row, fault)
            if not fault:
                shutil.rmtree(folder)

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(work, (seed for seed in options.seeds if seed not in done)))
    rows = [draw.row_of(int(row["seed"])) for row in recorded(options.record)]
    say(draw.coverage(rows))


if __name__ == "__main__":
    main()
