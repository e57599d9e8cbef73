"""Real sweeps on a machine that fails: what is tried again, when, and what is told of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from orchestrator import comparison_table
from orchestrator.storage.journal import read_events
from tests.orchestrator.databases import place_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SWEEP = """
name: hurt
tasks:
  - name: digits
    dataset: digits
    model: flaky
    protocol: {{base: digits, epochs: 2}}
    split: {{train_limit: 200}}
recipes: [ce]
search: {{trials: 1}}
resources: {{concurrent: 1, max_failures: 1}}
storage: {storage}
"""

# A network of one more file in the package of models, which every process of a sweep finds. It
# raises what FOLDER/error says, which it notes in FOLDER/raised, until that file has LIMIT lines.
MODEL = """
import os
from pathlib import Path

import torch
from torch import nn

from trainables.data import ImageShape
from trainables.models._base import Network
from trainables.models._registry import register_model

FOLDER, LIMIT = Path({folder!r}), {limit}


class Flaky(nn.Module):
    def forward(self, images):
        error, raised = FOLDER / "error", FOLDER / "raised"
        count = len(raised.read_text().splitlines()) if raised.exists() else 0
        if error.exists() and count < LIMIT:
            with raised.open("a") as stream:
                stream.write(f"{{os.getpid()}}" + chr(10))
            raise eval(error.read_text())
        return images.flatten(1)


@register_model("flaky")
def flaky(num_classes: int, shape: ImageShape) -> Network:
    return Network(Flaky(), nn.Linear(shape.channels * shape.size**2, num_classes))
"""
PLANT = """
import importlib.util
import sys


class Plant:
    def find_spec(self, name, path=None, target=None):
        if name != "trainables.models":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.submodule_search_locations.append({folder!r})
        return spec


sys.meta_path.insert(0, Plant())
"""


class Hurt:
    """A sweep whose network raises an error so many times."""

    def __init__(self, folder: Path, error: str, limit: int) -> None:
        self.folder = folder
        models = folder / "models"
        models.mkdir()
        (models / "flaky.py").write_text(MODEL.format(folder=str(folder), limit=limit))
        (folder / "sitecustomize.py").write_text(PLANT.format(folder=str(models)))
        (folder / "error").write_text(error)
        (folder / "hurt.yaml").write_text(SWEEP.format(storage=place_database(folder / "storage")))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        places = [str(self.folder), str(Path(__file__).parents[3])]
        return subprocess.run(
            [sys.executable, "-m", "orchestrator", "run", *arguments, "--quiet"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def resume(self) -> subprocess.CompletedProcess[str]:
        return self.run("--resume", "hurt", "--storage", str(self.folder / "storage"))

    def ends(self) -> list[Any]:
        events, _ = read_events(self.folder / "storage" / "sweeps" / "hurt" / "journal.jsonl")
        return [event for event in events if event.event == "trial_finished"]

    def raised(self) -> list[str]:
        """Return the process of each time that the error was raised."""
        return (self.folder / "raised").read_text().splitlines()

    def tracked(self) -> Counter[str]:
        """Return how many trials have each status on the tracking store."""
        client = MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("hurt")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        return Counter(run.info.status for run in runs if run.data.tags["calsweep.kind"] == "trial")

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder}/storage/mlflow.db"


def test_a_fault_is_told_where_it_stays_and_forgotten_where_it_passes(tmp_path: Path) -> None:
    sweep = Hurt(tmp_path, "OSError(5, 'Input/output error')", limit=3)
    assert sweep.run("hurt.yaml").returncode == 1
    (end,) = sweep.ends()
    assert (end.status, end.fault) == ("failed", "machine")
    assert end.reason == "OSError: [Errno 5] Input/output error"
    assert end.host == os.uname().nodename
    assert "flaky.py" in end.traceback.splitlines()[-2]
    assert len(set(sweep.raised())) == 2  # Started twice.
    assert sweep.tracked() == {"FAILED": 1}
    results = comparison_table("hurt", tracking_uri=sweep.uri).results
    assert [result.reason for result in results.values()] == [
        "by a fault of the machine, a resumed sweep tries again: "
        "OSError: [Errno 5] Input/output error"
    ]

    # The last of the three faults costs the resumed sweep a restart, nothing more.
    done = sweep.resume()
    assert done.returncode == 0, done.stderr[-3000:]
    (again,) = sweep.ends()[1:]
    assert (again.status, again.key) == ("finished", end.key)
    assert len(set(sweep.raised())) == 3
    assert sweep.tracked() == {"FINISHED": 1}
    results = comparison_table("hurt", tracking_uri=sweep.uri).results
    assert [(result.status, result.trials_failed) for result in results.values()] == [
        ("finished", 0)
    ]


def test_what_a_node_failed_starts_again_on_another(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("bad_node.py"), tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for what in ("starts", "measured"):
        first, second = (tmp_path / what).read_text().split()
        assert first != second
