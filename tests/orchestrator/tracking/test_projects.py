import os
from pathlib import Path

import pytest

from orchestrator.tracking import open_tracker
from orchestrator.tracking._changes import Change, Point
from orchestrator.tracking.tracker import UnreachableError
from tests.orchestrator.tracking.projects import Project
from trainables.common import errors
from trainables.common.errors import InputError

POINTS = [Point("val_ece", 0.5, 2_000, 0), Point("val_ece", 0.25, 3_500, 1)]


@pytest.fixture(params=["trackio", "wandb"])
def module(request, tmp_path, monkeypatch):
    return Project.install(request.param, tmp_path, monkeypatch)


def test_a_run_is_sent_once_when_it_ends(module: Project, tmp_path: Path, capsys) -> None:
    tracker = open_tracker(f"{module.__name__}:ours", create=True)
    experiment = tracker.open_experiment("night", tmp_path)[0].id
    run_id = tracker.create_run(experiment, "mbls 3", {"calsweep.kind": "trial"}, 1_000)
    for _ in range(2):
        tracker.log(
            run_id, Change("k", [*POINTS, Point("loss", 1.5, 4_000, 1)], {"mbls.margin": "6"})
        )
    assert module.runs == []
    for time in (9_000, 9_001):
        tracker.set_status(run_id, "FINISHED", time)
    (sent,) = module.runs
    config = {"calsweep.kind": "trial", "mbls.margin": "6", "status": "FINISHED"}
    place = {"project": "ours", "name": f"mbls 3-{run_id[:8]}", "group": "night"}
    assert sent.options.items() >= {**place, "config": config, "resume": "allow"}.items()
    assert sent.rows == [(0, {"val_ece": 0.5}), (1, {"val_ece": 0.25, "loss": 1.5})]
    assert sent.finished
    assert capsys.readouterr().out == ""
    assert os.environ.get("WANDB_MODE") == ("offline" if module.__name__ == "wandb" else None)


def test_only_new_figures_are_sent_later(module: Project, tmp_path: Path) -> None:
    tracker = open_tracker(f"{module.__name__}:ours", create=True)
    run_id = tracker.create_run(tracker.open_experiment("n", tmp_path)[0].id, "r", {}, 1_000)
    tracker.log(run_id, Change("k", POINTS))
    tracker.set_status(run_id, "FINISHED", 9_000)
    tracker.log(run_id, Change("k", [POINTS[1], Point("test_ece", 0.1, 9_500, 0)]))
    tracker.log(run_id, Change("k", tags={"chosen": "true"}))
    assert [sent.rows for sent in module.runs[1:]] == [[(0, {"test_ece": 0.1})]]


def test_a_run_that_could_not_be_sent_is_sent_again(module: Project, tmp_path: Path) -> None:
    tracker = open_tracker(f"{module.__name__}:ours", create=True)
    run_id = tracker.create_run(tracker.open_experiment("n", tmp_path)[0].id, "r", {}, 1_000)
    module.fault = module.Error("no answer")
    with pytest.raises(UnreachableError, match=rf"{module.__name__}:ours: no answer"):
        tracker.set_status(run_id, "FAILED", 9_000)
    module.fault = None
    tracker.set_status(run_id, "FAILED", 9_000)
    assert [sent.finished for sent in module.runs] == [True]


def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"'a/b' is not a project; use wandb:PROJECT with letters"):
        open_tracker("wandb:a/b", create=True)
    with pytest.raises(InputError, match="no run was tracked there on this machine"):
        open_tracker("trackio:absent")
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match="needs trackio, which is not installed: pip install trackio"
    ):
        open_tracker("trackio:ours", create=True)
