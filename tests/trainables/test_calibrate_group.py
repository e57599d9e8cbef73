"""Calibrations computed together: what is stored for each, and who is left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small_stages import Workshop, request

from trainables._calibrate_group import CalibrateGroup
from trainables.artifacts import Artifact
from trainables.errors import TrainingDivergedError
from trainables.groups import open_together
from trainables.stages import CalibrateStage, StageRequest, StageRun

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("calibrations"))


@pytest.fixture(scope="module")
def trained(workshop: Workshop) -> Artifact:
    return workshop.compute(request(workshop.prepared, protocol={"epochs": 2}))


def wanted(
    workshop: Workshop, trained: Artifact, recipe: str, seed: int, *points: Mapping[str, Any]
) -> list[StageRequest]:
    parts = [{recipe: point} for point in points]
    return [request(workshop.prepared, "calibrate", part, trained, seed) for part in parts]


def open_all(workshop: Workshop, requests: list[StageRequest]) -> StageRun:
    return open_together(requests[0], requests[1:], workshop.store, workshop.data)


def run_all(run: StageRun, seconds: float | None = None) -> Artifact:
    metrics = run.run_epoch()
    return run.finish(metrics, [{"step": 1, "metrics": metrics}], seconds)


@pytest.mark.parametrize(
    ("recipe", "name", "values"),
    [
        ("ts-ls", "smoothing", (0.05, 0.0, 0.2)),
        ("cts", "shrinkage", (1.0, 0.01, 100.0)),
        ("vs", "weight_decay", (1e-4, 1e-3, 1e-2)),
    ],
)
def test_every_one_is_stored_as_if_it_had_been_alone(
    workshop: Workshop, trained: Artifact, recipe: str, name: str, values: tuple[float, ...]
) -> None:
    points = [{name: value} for value in values]
    requests = wanted(workshop, trained, recipe, 0, *points)
    alone = [CalibrateStage(one, workshop.store, workshop.data) for one in requests]
    expected = [(stage.run_epoch(), stage.outcome()) for stage in alone]
    run = open_all(workshop, requests)
    assert isinstance(run, CalibrateGroup)
    run_all(run, seconds=30.0)
    for one, (metrics, (files, facts)) in zip(requests, expected, strict=True):
        found = workshop.store.find("calibrate", one.key())
        assert found is not None
        assert found.record["metrics"] == pytest.approx(metrics, abs=TOLERANCE)
        assert found.record["summary"] == pytest.approx(facts["summary"], abs=TOLERANCE)
        assert [entry["step"] for entry in found.record["history"]] == [1]
        assert found.record["seconds"] == 10.0
        for file, tensors in files.items():
            stored = found.tensors(file)
            for label, tensor in tensors.items():
                torch.testing.assert_close(stored[label], tensor, atol=TOLERANCE, rtol=0)


def test_what_is_stored_already_is_not_carried_along(workshop: Workshop, trained: Artifact) -> None:
    points = [{"smoothing": value} for value in (0.05, 0.1, 0.15)]
    requests = wanted(workshop, trained, "ts-ls", 1, *points)
    run_all(workshop.open(requests[1]))
    before = workshop.store.path("calibrate", requests[1].key()).stat().st_mtime_ns
    run_all(open_all(workshop, requests))
    assert workshop.store.path("calibrate", requests[1].key()).stat().st_mtime_ns == before
    assert workshop.store.contains("calibrate", requests[2].key())


def test_those_that_share_no_pass_are_left_to_their_own_trials(
    workshop: Workshop, trained: Artifact
) -> None:
    spline = wanted(workshop, trained, "spline", 2, {"knots": 6}, {"knots": 8})
    assert isinstance(open_all(workshop, spline), CalibrateStage)
    first, other = wanted(
        workshop, trained, "ts-ls", 2, {"smoothing": 0.1}, {"variant": "released"}
    )
    (another_seed,) = wanted(workshop, trained, "ts-ls", 3, {"smoothing": 0.1})
    (another_recipe,) = wanted(workshop, trained, "ts-fl", 2, {"gamma": 2.0})
    run = open_all(workshop, [first, other, another_seed, another_recipe])
    assert isinstance(run, CalibrateStage)


def test_one_that_diverges_is_left_out(
    workshop: Workshop, trained: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [{"smoothing": value} for value in (0.05, 0.2, 0.15)]
    requests = wanted(workshop, trained, "ts-ls", 4, *points)
    take = CalibrateStage.take

    def take_unless_bad(stage: CalibrateStage, *fitted: Any) -> dict[str, float]:
        if stage.request.parts["ts-ls"]["smoothing"] == 0.2:
            raise TrainingDivergedError("planted")
        return take(stage, *fitted)

    monkeypatch.setattr(CalibrateStage, "take", take_unless_bad)
    run_all(open_all(workshop, requests))
    assert [workshop.store.contains("calibrate", one.key()) for one in requests] == [
        True,
        False,
        True,
    ]
    with pytest.raises(TrainingDivergedError, match="planted"):
        run_all(open_all(workshop, [requests[1], wanted(workshop, trained, "ts-ls", 4, {})[0]]))


def test_it_starts_anew_after_an_interruption(
    workshop: Workshop, trained: Artifact, tmp_path: Path
) -> None:
    points = [{"smoothing": value} for value in (0.05, 0.1)]
    requests = wanted(workshop, trained, "ts-ls", 5, *points)
    first = open_all(workshop, requests)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = open_all(workshop, requests)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.epoch == 0
    run_all(second)
    assert all(workshop.store.contains("calibrate", one.key()) for one in requests)
