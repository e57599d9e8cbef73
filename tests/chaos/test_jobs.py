"""A sweep as a job of a real cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import Cluster

from orchestrator.storage.events import Evaluated, SweepEnded
from orchestrator.storage.journal import iterate_events
from orchestrator.tracking import open_tracker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # It kills nothing.
SWEEP = """
name: far
tasks: [{{dataset: digits, model: convnet, protocol: {{base: digits, epochs: 1}}}}]
recipes: [ce]
search: {{trials: 1}}
seeds: [0]
tracking: {{uri: "folder:{folder}/tracked"}}
storage: {folder}/storage
"""


def test_a_sweep_runs_as_a_job(tmp_path: Path) -> None:
    sweep = tmp_path / "mine.yaml"
    sweep.write_text(SWEEP.format(folder=tmp_path))
    # The head alone: nodes of one machine share a job's folder, and one that is done removes it.
    cluster = Cluster(tmp_path / "nodes.log", "0", "jobs")
    command = [sys.executable, "-m", "orchestrator", "submit", str(sweep), "--wait"]
    try:
        done = subprocess.run(
            [*command, "--address", cluster.job_server],
            env=cluster.environment,
            capture_output=True,
            text=True,
        )
    finally:
        cluster.end()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tmp_path}/storage/sweeps/far" in done.stdout.replace("\n", "")
    events = list(iterate_events(tmp_path / "storage/sweeps/far/journal.jsonl"))
    assert [event.status for event in events if isinstance(event, SweepEnded)] == ["finished"]
    assert sum(isinstance(event, Evaluated) for event in events) == 1
    assert open_tracker(f"folder:{tmp_path}/tracked").sweeps().keys() == {"far"}
