"""A night killed at random moments: what the next starts make of it.

    python benchmarks/nightly_kills.py --kills 10 --out benchmarks/results/nightly-kills.md

Each start of ``calsweep nightly run`` is ended by SIGKILL after a random time, until so many have
been; then one start is left alone. Everything that must hold is checked, and an error ends the
script. Ray's own processes are not killed: they have to notice by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import yaml
from _page import options, publish, setting

NIGHT = "2026-11-21"
SWEEP = {
    "name": "killed",
    "tasks": [
        {
            "name": "digits",
            "dataset": "digits",
            "model": "convnet",
            "protocol": {"base": "digits", "epochs": 6},
        }
    ],
    "recipes": ["ce", "ls", "ce+ts", "ls+ts"],
    "search": {"trials": 1},
    "seeds": [0, 1, 2],
}
OUTCOME_SECONDS = 600


def main() -> None:
    """Kill, finish, check, and write the table."""
    parser = options(__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shortest", type=float, default=5.0)
    parser.add_argument("--longest", type=float, default=60.0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = killed_night(Path(folder), wanted)
        facts = check(Path(folder))
    text = report(rows, facts, wanted)
    publish(text, wanted.out)


def killed_night(folder: Path, options: argparse.Namespace) -> list[tuple[float, int, int]]:
    """Return, for each start, its seconds, its exit code, and the trials finished after it."""
    file = folder / "nightly.yaml"
    file.write_text(yaml.safe_dump({"sweep": {**SWEEP, "storage": str(folder / "storage")}}))
    moments = random.Random(options.seed)
    rows = []
    while sum(code == -signal.SIGKILL for _, code, _ in rows) < options.kills:
        limit = moments.uniform(options.shortest, options.longest)
        rows.append(start(file, folder, limit))
        if rows[-1][1] != -signal.SIGKILL:
            print((folder / "output.log").read_text(encoding="utf-8"), file=sys.stderr)
            raise SystemExit("the night ended before it was killed often enough")
    rows.append(start(file, folder, OUTCOME_SECONDS))
    return rows


def start(file: Path, folder: Path, limit: float) -> tuple[float, int, int]:
    """Start the night and kill it after ``limit`` seconds, unless it ends before."""
    command = [sys.executable, "-m", "orchestrator", "nightly", "run", str(file)]
    began = time.monotonic()
    with (folder / "output.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--night", NIGHT, "--quiet"], cwd=folder, stdout=log, stderr=log
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    row = time.monotonic() - began, process.returncode, finished(folder)
    print(f"{row[0]:.1f} s, exit code {row[1]}, {row[2]} trials finished", file=sys.stderr)
    return row


def finished(folder: Path) -> int:
    """Return how many trials the journal calls finished."""
    return sum(event["event"] == "trial_finished" for event in journal(folder))


def journal(folder: Path) -> list[dict[str, object]]:
    """Return the events so far."""
    found = list(folder.glob("storage/nightly/killed/nights/*/sweeps/*/journal.jsonl"))
    lines = found[0].read_text(encoding="utf-8").splitlines(keepends=True) if found else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def check(folder: Path) -> dict[str, object]:
    """Check what must hold in the end, and return it."""
    nights = list((folder / "storage/nightly/killed/nights").iterdir())
    verdicts = [night for night in nights if (night / "verdict.json").exists()]
    keys = Counter(e["key"] for e in journal(folder) if e["event"] == "trial_finished")
    with closing(sqlite3.connect(folder / "storage/mlflow.db")) as database:
        states = dict(
            database.execute(
                "SELECT status, COUNT(*) FROM runs WHERE lifecycle_stage = 'active' GROUP BY status"
            ).fetchall()
        )
        tracked = database.execute(
            "SELECT tags.value, COUNT(*) FROM tags JOIN runs USING (run_uuid) WHERE "
            "tags.key = 'calsweep.key' AND runs.lifecycle_stage = 'active' GROUP BY tags.value"
        ).fetchall()
    doubles = [key for key, count in tracked if count > 1]
    record = json.loads((verdicts[0] / "record.json").read_text(encoding="utf-8"))
    values = sum(len(cell["values"]) for cell in record["cells"])
    facts = {
        "nights with a verdict": len(verdicts),
        "runs on the tracking store, by state": states,
        "runs still RUNNING": states.get("RUNNING", 0),
        "runs of the same key": len(doubles),
        "trials finished, each once": len(keys),
        "trials finished twice": sum(count > 1 for count in keys.values()),
        "figures in the record": values,
    }
    wanted = {
        "nights with a verdict": 1,
        "runs still RUNNING": 0,
        "runs of the same key": 0,
        "trials finished, each once": 12,
        "trials finished twice": 0,
        "figures in the record": 4 * 8 * 3,
    }
    for name, value in wanted.items():
        if facts[name] != value:
            raise SystemExit(f"{name}: {facts[name]}, expected {value}")
    return facts


def report(
    rows: list[tuple[float, int, int]], facts: dict[str, object], options: argparse.Namespace
) -> str:
    """Return the table as Markdown."""
    lines = [
        "# A night killed at random moments",
        "",
        f"`python benchmarks/nightly_kills.py --kills {options.kills} --seed {options.seed}`, "
        f"{setting()}. SIGKILL to the command after "
        f"{options.shortest:g} to {options.longest:g} s; 4 recipes, 3 seeds, 12 trials.",
        "",
        "| start | seconds | exit code | trials finished so far |",
        "| --- | --- | --- | --- |",
        *(f"| {n} | {s:.1f} | {code} | {done} |" for n, (s, code, done) in enumerate(rows, 1)),
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
