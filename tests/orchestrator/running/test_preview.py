"""What a plan says of stored outcomes: as far as they reach, and no further."""

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.cluster.size import ClusterSize
from orchestrator.running.data import DataPreview, prepare_data
from orchestrator.running.preview import StagePreview, at_once, fewest_hours, preview
from orchestrator.search.state import SweepState
from orchestrator.search.study_state import TrialSpec, setting_of
from orchestrator.storage.events import SweepStarted, TrialFinished
from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tracking import stage_seconds, sync
from trainables.common.stages import ArtifactRef
from trainables.metrics import calibration_report
from trainables.stages import validation_rows
from trainables.store.artifacts import ArtifactStore

SWEEP = """
name: {name}
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce, mbls, "*+macal", "*+ts"]
search: {{trials: 4, parallel_trials: 2, sampler: random, accuracy_errors: 1}}
seeds: [0, 1]
storage: {storage}
"""


def make_spec(storage: Path, name: str = "one") -> SweepSpec:
    return parse_sweep(SWEEP.format(name=name, storage=storage), name)


def compute(spec: SweepSpec, trials: int = 99, failing: str = "none") -> None:
    """Stand in for a run of the sweep that ends after so many trials, of which one may fail."""
    store, data = Storage.of(spec).store(), prepare_data(spec)
    with Journal(SweepFolder.of(spec).journal) as journal:
        journal.append(SweepStarted(sweep=spec.name, sweep_id="id", spec={}, provenance={}))
        rows = partial(validation_rows, store)
        state = SweepState(make_plan(spec), "id", data, journal.append, predictions=rows)
        for trial in islice(iter(state.next_trial, None), trials):
            if f"{trial.study}|{trial.number}".endswith(failing):
                state.record(trial, trial.ending("failed", {}, reason="loss became nan"))
            else:
                state.record(trial, store_outcome(store, trial))


def store_outcome(store: ArtifactStore, trial: TrialSpec) -> TrialFinished:
    """Store rows that are right, the surer the later the trial: so the last one is chosen."""
    key, labels = trial.request.key(), torch.arange(20) % 2
    logits = (1.0 + trial.number) * torch.eye(2)[labels]
    report = calibration_report(logits=logits, labels=labels)
    metrics = {f"val_{name}": value for name, value in report.items()}
    files = {"validation": {"logits": logits, "labels": labels}}
    store.write(ArtifactRef(trial.request.stage, key), files, {"metrics": metrics})
    return trial.ending("finished", metrics, artifact=key)


def counts(spec: SweepSpec) -> dict[str, tuple[int, int]]:
    return {part.stage: (part.computed, part.reused) for part in preview(make_plan(spec))}


ALL = {"train": (0, 7), "refine": (0, 10), "calibrate": (0, 4)}


def test_a_preview_of_an_empty_storage_writes_nothing(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    assert counts(spec) == {stage: (new, 0) for stage, (_, new) in ALL.items()}
    assert list(tmp_path.iterdir()) == []


def test_the_same_trials_are_reused(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    compute(spec)
    assert counts(spec) == ALL
    assert counts(make_spec(tmp_path, "two")) == ALL


def test_a_sweep_with_another_objective_reuses_intact_artifacts(tmp_path: Path) -> None:
    compute(make_spec(tmp_path))
    text = SWEEP.replace("trials: 4", "objective: smooth_ece, trials: 4")
    spec = parse_sweep(text.format(name="two", storage=tmp_path), "two")
    assert counts(spec) == ALL
    for rows in (tmp_path / "artifacts" / "calibrate").rglob("validation.safetensors"):
        rows.write_bytes(b"x")
    assert counts(spec) == {**ALL, "calibrate": (4, 0)}


def test_an_interrupted_sweep_is_reused_in_part(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    compute(spec, trials=3)
    assert sum(reused for _, reused in counts(spec).values()) == 3


def test_a_final_failure_is_not_computed_again(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    compute(spec, failing="|mbls|1")
    assert counts(spec) == ALL


def test_a_search_seed_adds_a_trial_to_each_recipe(tmp_path: Path) -> None:
    text = SWEEP.replace("trials: 4", "seed: 7, trials: 4")
    spec = parse_sweep(text.format(name="one", storage=tmp_path), "one")
    new = {stage: (count, 0) for stage, count in make_plan(spec).stage_trials().items()}
    assert counts(spec) == new
    assert new["train"] == (9, 0)


def test_estimated_hours_count_only_trials_that_will_be_computed() -> None:
    assert StagePreview("t", "train", computed=3, reused=2, seconds=1200.0).hours == 1.0
    assert StagePreview("t", "train", computed=3, reused=2, seconds=None).hours is None


def test_rows_of_a_preview_are_ordered_by_task_and_stage(tmp_path: Path) -> None:
    task = "dataset: digits, model: convnet, protocol: digits"
    both = ", ".join(f"{{{{name: {name}, {task}}}}}" for name in "ba")
    text = SWEEP.replace(f"{{{{{task}}}}}", both)
    spec = parse_sweep(text.format(name="one", storage=tmp_path), "one")
    parts = [(part.task, part.stage, part.computed) for part in preview(make_plan(spec))]
    stages = [("train", 7), ("refine", 10), ("calibrate", 4)]
    assert parts == [(task, *stage) for task in "ab" for stage in stages]


def test_a_task_without_all_data_is_computed_whole(tmp_path: Path) -> None:
    text = SWEEP.replace("protocol: digits", "protocol: digits, split: {{vary: true}}")
    spec = parse_sweep(text.format(name="one", storage=tmp_path), "one")
    compute(spec, trials=1)
    (task,) = spec.tasks
    data = prepare_data(spec)
    found = preview(make_plan(spec), DataPreview(data))
    assert [(part.computed, part.reused) for part in found] == [(6, 1), (10, 0), (4, 0)]
    first = {name: own for name, own in data.items() if name == task.data_name(0)}
    found = preview(make_plan(spec), DataPreview(first))
    assert [(part.computed, part.reused) for part in found] == [(7, 0), (10, 0), (4, 0)]


def test_removed_artifacts_are_computed(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    compute(spec)
    store = ArtifactStore(tmp_path / "artifacts")
    for manifest in (store.root / "calibrate").glob("*/*/manifest.json"):
        manifest.unlink()
    assert counts(spec) == {**ALL, "calibrate": (4, 0)}


CLUSTERED = """
resources: {{train: {{cpu: 8, gpu: 1}}, refine: {{cpu: 2, gpu: 0.1}}, calibrate: {{cpu: 3}}{more}}}
"""


@pytest.mark.parametrize(
    ("size", "more", "lag", "slots", "hours"),
    [
        # Ten of 0.1 GPUs fit on one; GPUs are busy with 16 + 0.8 hours.
        (ClusterSize(4, 4), "", 400, (16, 160, 2), 16.8 / 16),
        # Of 20 CPUs a node has two trainings, ten refinements.
        (ClusterSize(4, 4, 20), "", 400, (8, 40, 2), 2.0),
        (ClusterSize(4, 4, 20), ", concurrent: 5", 400, (5, 5, 2), 24.2 / 5),
        # No sweep is faster than one trial of each stage.
        (ClusterSize(100, 100), "", 400, (401, 800, 2), 0.6),
        # Two trainings of a study are suggested at once; cross-entropy has one.
        (ClusterSize(4, 4), "", 2, (3, 160, 2), 16 / 3),
    ],
)
def test_a_preview_of_a_cluster_counts_slots_and_the_hours_of_its_scarcest_resource(
    tmp_path: Path,
    size: ClusterSize,
    more: str,
    lag: int,
    slots: tuple[int, int, int],
    hours: float,
) -> None:
    text = SWEEP.format(name="one", storage=tmp_path) + CLUSTERED.format(more=more)
    rules = f"trials: 400, parallel_trials: {lag}, sampler: tpe"
    text = text.replace("trials: 4, parallel_trials: 2, sampler: random", rules)
    plan = make_plan(parse_sweep(text, "one"))
    stages = [
        StagePreview("t", "train", computed=40, reused=2, seconds=1440.0),
        StagePreview("t", "refine", computed=80, reused=0, seconds=360.0),
        StagePreview("t", "calibrate", computed=2, reused=0, seconds=360.0),
    ]
    assert at_once(plan, size) == dict(zip(("train", "refine", "calibrate"), slots, strict=True))
    assert fewest_hours(plan, stages, size) == pytest.approx(hours)
    unknown = StagePreview("t", "train", computed=1, reused=0, seconds=None)
    assert fewest_hours(plan, [*stages, unknown], size) is None
    assert fewest_hours(plan, [], size) == 0.0


def test_hours_come_from_earlier_runs(writer, store, monkeypatch):
    task = "digits/convnet/timed"
    writer.start()
    study = writer.open("mbls", task=task, setting="this")
    other = writer.open("fl", task=task, setting="that")
    for number, seconds in enumerate([10.0, 20.0, 90.0, 1000.0, 500.0, 3000.0, None]):
        key = writer.begin(other if seconds == 500.0 else study, number)
        ended = {"status": "failed" if seconds == 3000.0 else "finished", "metrics": {}}
        writer.write("trial_finished", key=key, reused=seconds == 1000.0, **ended, seconds=seconds)
    writer.end()
    sync(writer.path, store)
    for name, setting, stage, seconds in (
        (task, "this", "train", 20.0),
        (task, "that", "train", 500.0),
        (task, "this", "refine", None),
        ("another", "this", "train", None),
        (task, "neither", "train", None),
    ):
        assert stage_seconds(store, name, setting, stage) == seconds
    for recent, seconds in ((1, None), (2, 90.0), (3, 55.0)):
        monkeypatch.setattr("orchestrator.tracking._queries.RECENT", recent)
        assert stage_seconds(store, task, "this", "train") == seconds
    monkeypatch.setattr("orchestrator.tracking._queries.MOST", 2)
    assert stage_seconds(store, task, "that", "train") == 500.0
    assert stage_seconds(store, task, "this", "train") is None


def write_run(writer: Any, task: str, setting: str, seconds: float) -> None:
    key = writer.begin(writer.open("ce", task=task, setting=setting), 0)
    told = {"reused": False, "status": "finished", "metrics": {}, "seconds": seconds}
    writer.write("trial_finished", key=key, **told)


def write_images(path: Path, seed: int) -> None:
    """Write an archive of images that no other seed gives."""
    path.parent.mkdir()
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for part, rows in (("train", 40), ("test", 10)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (rows, 8, 8, 1), np.uint8)
        arrays[f"y_{part}"] = np.arange(rows) % 2
    np.savez(path, **arrays)


def test_hours_do_not_come_from_other_data(tmp_path: Path, writer: Any, store: str) -> None:
    plans, settings = [], []
    for seed in (0, 1):
        path = tmp_path / str(seed) / "own.npz"
        write_images(path, seed)
        text = SWEEP.format(name="one", storage=tmp_path).replace("digits", f"npz:{path}", 1)
        spec = parse_sweep(f"{text}tracking: {{uri: '{store}'}}\n", "one")
        (data,) = prepare_data(spec).values()
        plans.append(make_plan(spec))
        settings.append(setting_of(spec.tasks[0], data))
    assert plans[0].spec.tasks[0].id == plans[1].spec.tasks[0].id == "own/convnet/digits"
    writer.start()
    write_run(writer, "own/convnet/digits", settings[0], 36.0)
    writer.end()
    sync(writer.path, store, tmp_path / "served")
    known, unknown = ({part.stage: part.hours for part in preview(plan)} for plan in plans)
    assert known == {"train": pytest.approx(7 * 0.01), "refine": None, "calibrate": None}
    assert unknown == {"train": None, "refine": None, "calibrate": None}


def test_hours_come_from_runs_of_the_same_task(tmp_path: Path, writer: Any, store: str) -> None:
    tasks = []
    for name in "ba":
        path = tmp_path / name / "own.npz"
        write_images(path, ord(name))
        fields = f"dataset: 'npz:{path}', name: {name}, model: convnet, protocol: digits"
        tasks.append(f"{{{fields}, split: {{vary: true}}}}")
    text = f"name: two\ntasks: [{', '.join(tasks)}]\nrecipes: [ce]\nseeds: [3, 4]\n"
    spec = parse_sweep(f"{text}storage: {tmp_path}\ntracking: {{uri: '{store}'}}\n", "two")
    data = prepare_data(spec)
    writer.start()
    for task, seconds in zip(spec.tasks, (36.0, 72.0), strict=True):
        write_run(writer, task.id, setting_of(task, data[task.data_name(3)]), seconds)
    writer.end()
    sync(writer.path, store, tmp_path / "served")
    assert preview(make_plan(spec)) == [
        StagePreview("a", "train", computed=2, reused=0, seconds=72.0),
        StagePreview("b", "train", computed=2, reused=0, seconds=36.0),
    ]


@pytest.mark.parametrize("uri", ["sqlite:////nowhere/mlflow.db", "http://127.0.0.1:9"])
def test_a_plan_needs_no_tracking_server(uri: str) -> None:
    assert stage_seconds(uri, "digits/convnet/digits", "this", "train") is None
