"""A whole sweep within this process: real stages on a few digits, without Ray."""

from __future__ import annotations

from pathlib import Path

import torch

from orchestrator._evaluate import evaluate, pending_evaluations
from orchestrator._state import SweepState, TrialSpec
from orchestrator._study import Outcome
from orchestrator.journal import Journal
from orchestrator.plan import make_plan
from orchestrator.run import prepare_data
from orchestrator.spec import SweepSpec, parse_sweep
from orchestrator.tracking import sync
from trainables.artifacts import ArtifactStore
from trainables.data import PreparedData
from trainables.stages import TaskData, open_stage

TASK = "digits/convnet/tiny"
SWEEP = """
name: {name}
tasks:
  - name: {task}
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 2}}
    split: {{train_limit: 200, test_limit: 150}}
recipes: [ce, short+ts, ce+macal+ts]
variants:
  short: {{of: ls, fixed: {{smoothing: 0.05}}}}
tags: {{team: red}}
search: {{trials: 1, fixed: {{macal: {{epochs: 2}}}}}}
seeds: [0, 1]
resources: {{train: {{gpu: {gpus}}}}}
storage: {storage}
"""


def tiny_sweep(
    storage: Path, name: str = "tiny", uri: str | None = None, gpus: float = 0.0
) -> SweepSpec:
    """Run a sweep, on the CPU in any case, and deliver it to its own tracking store, or another."""
    torch.set_num_threads(1)
    text = SWEEP.format(name=name, task=TASK, storage=storage, gpus=gpus)
    spec = parse_sweep(text, name)
    data, store = prepare_data(spec), ArtifactStore(spec.storage_path / "artifacts")
    with Journal(spec.directory / "journal.jsonl") as journal:
        journal.append(
            {
                "event": "sweep_started",
                "sweep": name,
                "sweep_id": f"{name}-id",
                "spec": spec.model_dump(mode="json"),
                "provenance": {"git_commit": "c0ffee", "versions": {}},
            }
        )
        state = SweepState(make_plan(spec), f"{name}-id", data, journal.append)
        while (trial := state.next_trial()) is not None:
            state.record(trial, compute(trial, store, data[TASK]), seconds=0.5)
        for job in pending_evaluations(state):
            journal.append(evaluate(str(store.root), str(spec.directory / "chosen"), job))
        journal.append({"event": "sweep_ended", "status": "finished"})
    sync(journal.path, uri or spec.tracking_uri, spec.storage_path / "mlflow-artifacts")
    return spec


def compute(trial: TrialSpec, store: ArtifactStore, data: PreparedData) -> Outcome:
    stage = open_stage(trial.request, store, TaskData(data, torch.device("cpu")))
    metrics: dict[str, float] = {}
    while stage.epoch < stage.epochs:
        metrics = stage.run_epoch()
    stage.finish(metrics, seconds=2.0)
    return Outcome("finished", metrics, artifact=trial.request.key())
