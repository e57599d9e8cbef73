from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainables.worker.bench_here import EPOCHS, Place
from trainables.jobs import Status
from trainables.ray_edge import JobTrainable, node_here
from trainables.worker import Bench


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class Edge(JobTrainable):
    """The trainable, which Tune would hand the settings."""

    def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
        settings = {"storage": config["storage"], "sealed": False, "report_seconds": 0.0}
        super().setup(config, **settings)


def edge(place: Place, **changes: Any) -> Edge:
    return Edge({"job": place.job(**changes), "storage": str(place.root)})


def test_results_have_the_report_and_the_fields_that_tune_reads(place):
    trial = edge(place)
    found = [trial.train() for _ in EPOCHS]
    assert [result["epoch"] for result in found] == EPOCHS
    assert [result["done"] for result in found] == [False, False, True]
    assert found[-1]["report"].status == Status.FINISHED
    for result in found:
        assert result["score"] == result["report"].metrics["val_nll"]
    assert trial.reset({"job": place.job()})
    (again,) = [trial.train()]
    assert (again["epoch"], again["done"]) == (0, True)
    assert again["report"].cost.reused


def test_score_is_infinite_before_there_is_one(place):
    trial = edge(place)
    with place.lock():
        assert trial.train()["score"] == float("inf")


def test_broken_trial_is_not_done_and_raises_at_its_next_step(place, monkeypatch):
    """So Tune ends its process."""

    def broken(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    trial = edge(place)
    with monkeypatch.context() as patched:
        patched.setattr(Bench, "open_run", broken)
        assert trial.train()["done"] is False
    with pytest.raises(RuntimeError, match="Input/output error"):
        trial.train()
    trial.reset({"job": place.job(seed=1)})
    assert trial.train()["report"].status == Status.RUNNING
    trial.stop()


def test_stopped_trial_passes_its_lock_on(place):
    trial = edge(place)
    trial.train()
    assert not place.lock().take()
    trial.stop()
    assert place.lock().take()


@pytest.mark.parametrize(("within", "name"), [(True, "n7"), (False, "")])
def test_process_within_ray_knows_its_node(monkeypatch, within, name):
    monkeypatch.setattr("ray.is_initialized", lambda: within)
    context = SimpleNamespace(get_node_id=lambda: "n7", node_id="n7")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    assert node_here() == name
