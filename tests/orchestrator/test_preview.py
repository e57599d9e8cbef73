"""What a plan says of stored outcomes: as far as they reach, and no further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator._state import SweepState, TrialSpec
from orchestrator._study import Outcome
from orchestrator.journal import Journal
from orchestrator.plan import make_plan
from orchestrator.preview import preview
from orchestrator.run import prepare_data
from orchestrator.spec import SweepSpec, parse_sweep
from orchestrator.tracking import stage_seconds, sync
from trainables.artifacts import ArtifactStore

SWEEP = """
name: {name}
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce, mbls, "*+macal", "*+ts"]
search: {{trials: 4, parallel_trials: 2, sampler: random}}
seeds: [0, 1]
storage: {storage}
"""


def make_spec(storage: Path, name: str = "one") -> SweepSpec:
    return parse_sweep(SWEEP.format(name=name, storage=storage), name)


def compute(spec: SweepSpec, trials: int | None = None) -> None:
    """Stand in for a run of the sweep that ends after so many trials."""
    store = ArtifactStore(spec.storage_path / "artifacts")
    with Journal(spec.directory / "journal.jsonl") as journal:
        state = SweepState(make_plan(spec), "id", prepare_data(spec), journal.append)
        while (trial := state.next_trial()) is not None and trials != 0:
            trials = None if trials is None else trials - 1
            state.record(trial, store_outcome(store, trial))


def store_outcome(store: ArtifactStore, trial: TrialSpec) -> Outcome:
    key = trial.request.key()
    metrics = {"val_ece": 1 / (2 + trial.number), "val_acc": 0.9}
    store.write(trial.request.stage, key, {"w": {"w": torch.zeros(1)}}, {"metrics": metrics})
    return Outcome("finished", metrics, key)


def counts(spec: SweepSpec) -> dict[str, tuple[int, int]]:
    return {part.stage: (part.computed, part.reused) for part in preview(make_plan(spec))}


ALL = {"train": (0, 7), "refine": (0, 10), "calibrate": (0, 4)}


def test_nothing_is_there_and_nothing_is_written(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    assert counts(spec) == {stage: (new, 0) for stage, (_, new) in ALL.items()}
    assert list(tmp_path.iterdir()) == []


def test_a_finished_sweep_and_one_with_the_same_trials_are_reused(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    compute(spec)
    assert counts(spec) == ALL
    assert counts(make_spec(tmp_path, "two")) == ALL


def test_an_interrupted_sweep_is_reused_as_far_as_it_got(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    compute(spec, trials=3)
    assert sum(reused for _, reused in counts(spec).values()) == 3


def test_what_was_removed_is_computed(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    compute(spec)
    store = ArtifactStore(tmp_path / "artifacts")
    for manifest in (store.root / "calibrate").glob("*/*/manifest.json"):
        manifest.unlink()
    assert counts(spec) == {**ALL, "calibrate": (4, 0)}


def test_hours_come_from_earlier_runs(tmp_path: Path, writer: Any, store: str) -> None:
    task = "digits/convnet/timed"
    writer.start()
    study = writer.open("mbls", task=task)
    for number, seconds in enumerate([10.0, 20.0, 90.0, 1000.0]):
        key = writer.begin(study, number)
        ended = {"status": "finished", "metrics": {"val_ece": 0.1}, "seconds": seconds}
        writer.write("trial_finished", key=key, reused=seconds == 1000.0, **ended)
    writer.end()
    sync(writer.path, store, tmp_path / "served")
    assert stage_seconds(store, task, "train") == 20.0
    assert stage_seconds(store, task, "refine") is None
    assert stage_seconds(store, "another", "train") is None


@pytest.mark.parametrize("uri", ["sqlite:////nowhere/mlflow.db", "http://127.0.0.1:9"])
def test_a_store_that_is_away_does_not_hold_up_a_plan(uri: str) -> None:
    assert stage_seconds(uri, "digits/convnet/digits", "train") is None
