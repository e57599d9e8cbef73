import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Cluster

from orchestrator.storage.events import Evaluated, SweepEnded
from orchestrator.storage.journal import iterate_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # It kills nothing.
SWEEP = """
name: far
tasks: [{{dataset: digits, model: convnet, protocol: {{base: digits, epochs: 1}}}}]
recipes: [ce]
search: {{trials: 1}}
seeds: [0]
tracking: {{uri: "http://127.0.0.1:9"}}  # Nothing listens there.
storage: {folder}/storage
"""


PROGRAM = """
import sys
from pathlib import Path
from orchestrator.cluster.local import join_cluster

print(sys.argv[1:])
with join_cluster(sys.argv[-1]) as ray:
    print(ray.get(ray.remote(lambda: Path("sweep.yaml").read_text()).remote()))
"""


def submitted(folder: Path, **options: Path) -> str:
    """Hand the sweep to a cluster and wait until the job has ended well; return what it said."""
    sweep = folder / "mine.yaml"
    sweep.write_text(SWEEP.format(folder=folder))
    # The head alone: nodes of one machine share a job's folder, and one that is done removes it.
    cluster = Cluster(folder / "nodes.log", "0", "jobs", **options)
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
    return done.stdout


def test_a_job_finds_its_sweep_and_the_cluster(tmp_path: Path) -> None:
    program = tmp_path / "programs" / "calsweep"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", PROGRAM])} "$@"\n')
    program.chmod(0o755)
    told = submitted(tmp_path, programs=program.parent)
    assert "['run', 'sweep.yaml', '--address', 'auto']\n" in told
    assert (tmp_path / "mine.yaml").read_text() in told


@pytest.mark.long
def test_a_sweep_runs_as_a_job(tmp_path: Path) -> None:
    assert f"{tmp_path}/storage/sweeps/far" in submitted(tmp_path).replace("\n", "")
    events = list(iterate_events(tmp_path / "storage/sweeps/far/journal.jsonl"))
    assert [event.status for event in events if isinstance(event, SweepEnded)] == ["finished"]
    assert sum(isinstance(event, Evaluated) for event in events) == 1
