"""Times a sweep of 20 losses on cached features: `python benchmarks/feature_sweep.py`.

The features have 50,000 rows of 768 dimensions and 100 classes; heads are linear; each loss has 8
trials. The cost of `kde-xe` grows with the square of the batch size, so it is not one of the 20
losses; `--losses kde-xe` measures it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _page import load, options, publish, setting, table

from orchestrator.storage.ledger import read_ledger

NAMES = """acls au aurc brier cape ce cpc crl dca dfl ecp esd fl flsd ifl ls mbls mdca mmce
mmce-w"""
WIDTH, CLASSES = 768, 100
QUESTION = "How long does a sweep of losses on cached features take?"
Row = tuple[object, ...]


def make(root: Path, rows: int, losses: list[str], trials: int) -> None:
    """Write overlapping clusters of features, and a sweep file (JSON is YAML)."""
    draw = np.random.default_rng(0)
    labels = np.arange(rows) % CLASSES
    centres = (0.16 * draw.normal(size=(CLASSES, WIDTH))).astype(np.float32)
    features = centres[labels] + draw.standard_normal((rows, WIDTH), np.float32)
    np.savez(root / "features.npz", features=features, labels=labels)
    sweep = {
        "name": "features",
        "tasks": [{"features": "features.npz", "protocol": "features"}],
        "recipes": losses,
        "search": {"trials": trials},
        "executor": "local",
    }
    (root / "sweep.yaml").write_text(json.dumps(sweep), encoding="utf-8")


def computed(root: Path) -> list[Row]:
    """Return finished trials and their seconds for each loss."""
    ledger = read_ledger(root / "calsweep-storage/sweeps/features/journal.jsonl")
    rows: list[Row] = []
    for study in ledger.studies.values():
        seconds = [trial.seconds or 0.0 for trial in study.begun.values()]
        rows.append((study.recipe, len(seconds), f"{sum(seconds):.0f}"))
    return rows


def main() -> None:
    """Run the sweep and print the page."""
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--losses", nargs="+", default=NAMES.split())
    given = parser.parse_args()
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    before = load()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make(root, given.rows, given.losses, given.trials)
        started = time.perf_counter()
        command = [sys.executable, "-m", "orchestrator", "run", "sweep.yaml"]
        subprocess.run(command, cwd=root, check=True, stdout=sys.stderr)
        seconds = time.perf_counter() - started
        rows = computed(root)
    size = f"{given.rows:,} rows, {WIDTH} features, {CLASSES} classes, {given.trials} trials"
    lines = [
        f"**{seconds / 60:.1f} minutes** for {len(rows)} losses, {size} of each at most.",
        "",
        *table(("loss", "trials", "seconds"), rows),
    ]
    publish(QUESTION, lines, f"{setting('torch')}. Load average {before}.", given.out)


if __name__ == "__main__":
    main()
