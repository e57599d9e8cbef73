import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from told_sweep import short_sweep

from orchestrator.nightly import Book, Nightly, load_nightly
from orchestrator.storage.journal import read_events
from tests.orchestrator.databases import place_database

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
KINDS = """
SELECT value, status FROM tags JOIN runs USING (run_uuid)
WHERE key = 'calsweep.kind' AND lifecycle_stage = 'active'
"""


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    path = folder / "nightly.yaml"
    sweep = short_sweep("real", place_database(folder / "storage"))
    path.write_text(yaml.safe_dump({"sweep": sweep}))
    return load_nightly(path)


def start(benchmark: Nightly, night: str) -> subprocess.Popen[str]:
    """Start the command for a night."""
    command = [sys.executable, "-m", "orchestrator", "nightly", "run", str(benchmark.path)]
    return subprocess.Popen(
        [*command, "--night", night, "--quiet"],
        cwd=benchmark.path.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def events(benchmark: Nightly, night: str) -> Counter[str]:
    """Return how many trials of each key have finished."""
    folder = benchmark.folder / "nights" / night / "sweeps"
    found = list(folder.glob("*/journal.jsonl"))
    told = read_events(found[0])[0] if found else []
    return Counter(event.key for event in told if event.event == "trial_finished")


def test_a_night_that_is_killed_is_finished_once(benchmark, rows):
    night = "2026-11-01"
    process = start(benchmark, night)
    deadline = time.monotonic() + 1500
    while not events(benchmark, night) and time.monotonic() < deadline:
        time.sleep(0.05)
    # At the end of its first trial, while it is stored, or in the midst of the second.
    time.sleep(random.Random(time.time_ns()).uniform(0, 2))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = start(benchmark, night)
    output, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, output
    # The night's runs, each once: two studies, two trials, and the night itself.
    kinds = rows(benchmark.sweep.tracking_uri, KINDS)
    expected = {"study": 2, "trial": 2, "nights": 1}
    assert Counter(kinds) == {(kind, "FINISHED"): count for kind, count in expected.items()}
    assert set(events(benchmark, night).values()) == {1}
    ((record, verdict),) = Book(benchmark.folder).judged()
    assert verdict.status == "ok"
    figures = {cell: values for cell, values in record.cells.items() if cell.recipe != "*"}
    assert len(figures) == 2 * 8
    assert all(list(values) == [0] for values in figures.values())
