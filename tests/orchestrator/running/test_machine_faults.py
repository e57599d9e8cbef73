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
# raises an error, which it notes in FOLDER/raised, three times in a search and once in measuring.
MODEL = """
import os
from pathlib import Path

from torch import nn

from trainables.data import ImageShape
from trainables.data._guard import is_sealed
from trainables.models._base import Network
from trainables.models._registry import register_model

FOLDER = Path({folder!r})


class Flaky(nn.Module):
    def forward(self, images):
        raised = FOLDER / "raised"
        count = len(raised.read_text().split()) if raised.exists() else 0
        if count < 3 or (count == 3 and not is_sealed()):
            with raised.open("a") as stream:
                print(os.getpid(), file=stream)
            raise OSError(5, "Input/output error")
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


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(__file__).parents[3]),
    "OMP_NUM_THREADS": "1",
}
REASON = "OSError: [Errno 5] Input/output error"


class Hurt:
    """A sweep whose network raises errors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        models = folder / "models"
        models.mkdir()
        (models / "flaky.py").write_text(MODEL.format(folder=str(folder)))
        (folder / "sitecustomize.py").write_text(PLANT.format(folder=str(models)))
        (folder / "hurt.yaml").write_text(SWEEP.format(storage=place_database(folder / "storage")))

    def run(self, *words: str) -> int:
        """Run it, and return the exit code."""
        path = os.pathsep.join([str(self.folder), ENVIRONMENT["PYTHONPATH"]])
        command = [sys.executable, "-m", "orchestrator", "run", "--quiet", *words]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**ENVIRONMENT, "PYTHONPATH": path},
            timeout=900,
            check=False,
        )
        return done.returncode

    def ends(self) -> list[Any]:
        events, _ = read_events(self.folder / "storage" / "sweeps" / "hurt" / "journal.jsonl")
        return [event for event in events if event.event == "trial_finished"]

    def raised(self) -> int:
        """Return how many processes raised the error."""
        return len(set((self.folder / "raised").read_text().split()))

    def tracked(self) -> tuple[dict[str, int], str]:
        """Return how many trials have each status on the tracking store, and the row's reason."""
        uri = f"sqlite:///{self.folder}/storage/mlflow.db"
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("hurt")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        trials = [run.info.status for run in runs if run.data.tags["calsweep.kind"] == "trial"]
        (result,) = comparison_table("hurt", tracking_uri=uri).results.values()
        assert result.trials_failed == trials.count("FAILED")
        return Counter(trials), result.reason


def test_a_machine_fault_is_retried_and_recorded(tmp_path: Path) -> None:
    sweep = Hurt(tmp_path)
    assert sweep.run("hurt.yaml") == 1
    (end,) = sweep.ends()
    assert (end.status, end.fault, end.reason) == ("failed", "machine", REASON)
    assert end.host == os.uname().nodename
    assert "flaky.py" in end.traceback.splitlines()[-2]
    assert sweep.raised() == 2, "started twice"
    reason = f"by a fault of the machine, a resumed sweep tries again: {REASON}"
    assert sweep.tracked() == ({"FAILED": 1}, reason)

    # What is left of the faults costs a trial and a measurement a restart each, nothing more.
    assert sweep.run("--resume", "hurt", "--storage", "storage") == 0
    (again,) = sweep.ends()[1:]
    assert (again.status, again.key) == ("finished", end.key)
    assert sweep.raised() == 4
    assert sweep.tracked() == ({"FINISHED": 1}, "")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the lines that ``bad_nodes.py`` prints, one cluster for all."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("bad_nodes.py")],
        cwd=tmp_path_factory.mktemp("nodes"),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    return done.stdout.splitlines()


def test_gpu_that_fails_in_a_row_gets_nothing_more(said: list[str]) -> None:
    assert said[0] == "{'0'} ['0'] 1 ['1']"
    assert (
        f"{os.uname().nodename} GPU 1 is left out: 3 trials in a row failed there, the last by "
        "RuntimeError: CUDA error: uncorrectable ECC error; `calsweep doctor --storage STORAGE` "
        "there takes it back in"
    ) in said


def test_a_failed_job_avoids_the_node(said: list[str]) -> None:
    first, second = said[1].split()
    assert first != second


def test_node_with_other_code_computes_nothing(said: list[str]) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        assert len(said) == 3
        pytest.skip("no node can be given a file system of its own here")
    assert said[2] == "{'good': 12}"
    told = f"{os.uname().nodename} is left out of this run: "
    assert said[4:] == [
        f"{told}its trainables/losses/ce.py is not as here",
        f"{told}trainables/losses/ce.py is not as it was when the sweep began",
    ]
