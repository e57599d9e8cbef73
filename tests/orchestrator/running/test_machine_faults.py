"""Machines that fail: what is tried again, where and when, and what is told of it."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from torch import Tensor, nn

from orchestrator import comparison_table
from orchestrator.cli import main
from orchestrator.storage.events import TrialFinished
from orchestrator.storage.journal import read_events
from tests.orchestrator.one_process import one_process
from trainables.data import ImageShape
from trainables.data._guard import is_sealed
from trainables.models import MODELS
from trainables.models._base import Network, register_model

pytestmark = pytest.mark.slow

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
resources: {{max_failures: 1}}
storage: {storage}
"""
REASON = "OSError: [Errno 5] Input/output error"


class Flaky(nn.Module):
    """Raises an error three times in a search and once in measuring."""

    raised = 0

    def forward(self, images: Tensor) -> Tensor:
        if Flaky.raised < 3 or (Flaky.raised == 3 and not is_sealed()):
            Flaky.raised += 1
            raise OSError(5, "Input/output error")
        return images.flatten(1)


@pytest.fixture
def flaky() -> Iterator[None]:
    @register_model("flaky")
    def build(num_classes: int, shape: ImageShape) -> Network:
        return Network(Flaky(), nn.Linear(shape.channels * shape.size**2, num_classes))

    Flaky.raised = 0
    yield
    del MODELS._entries["flaky"]


def ends(folder: Path) -> list[TrialFinished]:
    events, _ = read_events(folder / "storage" / "sweeps" / "hurt" / "journal.jsonl")
    return [event for event in events if isinstance(event, TrialFinished)]


def tracked(folder: Path) -> tuple[dict[str, int], str]:
    """Return how many trials have each status on the tracking store, and the row's reason."""
    uri = f"sqlite:///{folder}/storage/mlflow.db"
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("hurt")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    trials = [run.info.status for run in runs if run.data.tags["calsweep.kind"] == "trial"]
    (result,) = comparison_table("hurt", tracking_uri=uri).results.values()
    assert result.trials_failed == trials.count("FAILED")
    return Counter(trials), result.reason


@one_process()
def test_a_machine_fault_is_retried_and_recorded(flaky: None, tmp_path: Path) -> None:
    storage = str(tmp_path / "storage")
    (tmp_path / "hurt.yaml").write_text(SWEEP.format(storage=storage))
    assert main(["run", "--quiet", str(tmp_path / "hurt.yaml")]) == 1
    (end,) = ends(tmp_path)
    assert (end.status, end.fault, end.reason) == ("failed", "machine", REASON)
    assert end.host == os.uname().nodename
    assert Path(__file__).name in end.traceback.splitlines()[-2]
    assert Flaky.raised == 2, "started twice"
    reason = f"the machine failed (resume the sweep to try again): {REASON}"
    assert tracked(tmp_path) == ({"FAILED": 1}, reason)

    # What is left of the faults costs a trial and a measurement a restart each, nothing more.
    assert main(["run", "--quiet", "--resume", "hurt", "--storage", storage]) == 0
    (again,) = ends(tmp_path)[1:]
    assert (again.status, again.key) == ("finished", end.key)
    assert Flaky.raised == 4
    assert tracked(tmp_path) == ({"FINISHED": 1}, "")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the lines that ``bad_nodes.py`` prints, one cluster for all."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("bad_nodes.py")],
        cwd=tmp_path_factory.mktemp("nodes"),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.long
def test_gpu_that_fails_in_a_row_gets_nothing_more(said: list[str]) -> None:
    assert said[0] == "{'0'} ['0'] 1 ['1']"
    assert (
        f"{os.uname().nodename} GPU 1 is excluded: 3 trials in a row failed there, the last with "
        "RuntimeError: CUDA error: uncorrectable ECC error; run `calsweep doctor --storage "
        "STORAGE` there to include it again"
    ) in said


@pytest.mark.long
def test_a_failed_job_avoids_the_node(said: list[str]) -> None:
    first, second = said[1].split()
    assert first != second


@pytest.mark.long
def test_node_with_other_code_computes_nothing(said: list[str]) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        assert len(said) == 3
        pytest.skip("no node can be given a file system of its own here")
    assert said[2] == "{'good': 8}"
    told = f"{os.uname().nodename} is excluded from this run: "
    assert said[4:] == [
        f"{told}its trainables/losses/ce.py differs from the driver's",
        f"{told}trainables/losses/ce.py has changed since the sweep began",
    ]
