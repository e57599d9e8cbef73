"""Whole nights through the command: killed, gone on with, and with a bug planted."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from orchestrator.cli import main
from orchestrator.nightly import Book, Nightly, load_nightly
from orchestrator.storage.journal import read_events
from tests.orchestrator.databases import place_database
from tests.orchestrator.one_process import one_process
from trainables.calibrators.ts import TemperatureScaling

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SWEEP = {
    "name": "real",
    "tasks": [
        {
            "name": "d",
            "dataset": "digits",
            "model": "convnet",
            "protocol": {"base": "digits", "epochs": 2},
        }
    ],
    "recipes": ["ce", "ce+ts"],
    "search": {"trials": 1},
    "executor": "local",
}


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Nightly:
    folder = tmp_path_factory.mktemp("real")
    path = folder / "nightly.yaml"
    storage = place_database(folder / "storage")
    path.write_text(yaml.safe_dump({"sweep": {**SWEEP, "storage": str(storage)}}))
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


def test_a_night_that_is_killed_is_finished_once(benchmark: Nightly) -> None:
    night = "2026-11-01"
    process = start(benchmark, night)
    deadline = time.monotonic() + 1500
    while not events(benchmark, night) and time.monotonic() < deadline:
        time.sleep(0.05)
    # At the end of its first trial, while it is stored, or in the midst of the second.
    time.sleep(random.Random(time.time_ns()).uniform(0, 4))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = start(benchmark, night)
    output, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, output
    # The night's runs, each once: two studies, two trials, and the night itself.
    uri = benchmark.sweep.tracking_uri.removeprefix("sqlite:///")
    with closing(sqlite3.connect(uri)) as database:
        runs = database.execute(
            "SELECT runs.status, experiments.name FROM runs JOIN experiments USING (experiment_id) "
            "WHERE runs.lifecycle_stage = 'active'"
        ).fetchall()
    assert [name for _, name in runs].count("real-nights") == 1
    assert "RUNNING" not in {status for status, _ in runs}
    assert set(events(benchmark, night).values()) == {1}
    ((record, verdict),) = Book(benchmark.folder).judged()
    assert verdict.status == "ok"
    figures = {cell: values for cell, values in record.cells.items() if cell.recipe != "*"}
    assert len(figures) == 2 * 8
    assert all(list(values) == [0] for values in figures.values())


@one_process()
def test_a_bug_raises_the_alarm_and_names_the_cell(
    benchmark: Nightly, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The good nights are copies of a real one: on one machine they have the same figures."""
    book = Book(benchmark.folder)
    good = book.night("2026-11-01")
    assert good.record is not None
    assert good.verdict is not None
    for day in range(2, 9):
        copy = book.begin(f"2026-11-{day:02d}", 0.0, good.facts["environment"])
        for name in ("record.json", "verdict.json"):
            text = (good.folder / name).read_text().replace("2026-11-01", copy.name)
            (copy.folder / name).write_text(text)
        for name in ("told.json", "delivered.json"):
            copy.write(name, {})
    monkeypatch.setattr(
        TemperatureScaling, "_temperatures", lambda self, logits: self.temperature * 0 + 1
    )
    assert main(["nightly", "run", str(benchmark.path), "--night", "2026-11-09", "--quiet"]) == 3
    output = capsys.readouterr().out
    assert "ce+ts on d has the same figures as ce" in output
    alarms = book.judged()[-1][1].alarms
    # Speeds and memory may be alarmed besides: the good nights are copies, without their noise.
    costs = {"images_per_second", "wall_seconds", "peak_memory", "total_seconds"}
    assert {a.cell.recipe for a in alarms if a.cell.metric not in costs} == {"ce+ts"}
