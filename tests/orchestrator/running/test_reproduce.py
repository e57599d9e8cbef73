"""Computing a tracked run again, and what is promoted to champion."""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from orchestrator.cli import main
from orchestrator.cli._outcome import show_outcome
from orchestrator.running import reproduce as reproducing
from orchestrator.running.reproduce import Comparison, Reproduction, reproduce
from orchestrator.running.run import SweepOutcome
from orchestrator.storage.results import StudyResult
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.recipes import parse_recipe
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tracking import best_trials, study_results
from orchestrator.tracking.champion import promote
from tests.orchestrator.tiny_sweep import SWEEP, TASK, run_within, tiny_sweep
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData, SplitSpec
from trainables.stages.export import load_chain
from trainables.worker._computations import chain_of

CHAMPION = "models:/digits.convnet.tiny@champion"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> SweepSpec:
    return tiny_sweep(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def results(spec: SweepSpec) -> dict[str, StudyResult]:
    return {result.recipe: result for result in study_results(spec.tracking_uri, "tiny")}


def prepared(spec: SweepSpec, result: StudyResult) -> PreparedData:
    return PreparedData.open(Storage.of(spec).data / result.fingerprint)


def changed(spec: SweepSpec, place: Path, *queries: str) -> str:
    """Copy the tracking database of a sweep, change the copy and return its address."""
    copy = place / "changed.db"
    copy.write_bytes(Path(spec.tracking_uri.removeprefix("sqlite:///")).read_bytes())
    with closing(sqlite3.connect(copy)) as database, database:
        for query in queries:
            database.execute(query)
    return f"sqlite:///{copy}"


def predictions(spec: SweepSpec, key: str) -> dict[str, torch.Tensor]:
    found = Storage.of(spec).store().find(ArtifactRef("evaluate", key))
    assert found is not None
    return found.tensors("test")


def test_results_lead_to_predictions_data_and_cost(spec, results):
    result = results["ce+macal+ts"]
    assert (result.dataset, result.model, result.protocol) == ("digits", "convnet", "digits-custom")
    assert (result.code, result.sweep_id) == ("c0ffee", "tiny-id")
    assert (len(result.test), len(result.run_ids)) == (2, 2)
    store = Storage.of(spec).store()
    for key, metrics, cost in zip(result.predictions, result.test, result.seconds, strict=True):
        tested = store.find(ArtifactRef("evaluate", key))
        assert tested is not None
        rows = tested.tensors("test")
        hits = rows["log_probs"].argmax(1) == rows["labels"]
        assert hits.float().mean().item() == pytest.approx(metrics["acc"])
        chain = chain_of(store, ArtifactRef("calibrate", tested.record["upstream"]))
        assert [link.stage for link in chain] == ["calibrate", "refine", "train"]
        assert cost == pytest.approx(sum(link.record["seconds"] for link in chain))


@pytest.mark.parametrize(
    ("seed", "recipe"), [(0, "ce"), (1, "ce"), (0, "short+ts"), (1, "ce+macal+ts")]
)
def test_a_run_computed_again_gives_the_same_figures(spec, results, tmp_path, recipe, seed):
    told: list[Any] = []
    found = reproduce(
        results[recipe].run_ids[seed],
        tracking_uri=spec.tracking_uri,
        folder=tmp_path,
        progress=lambda *epoch: told.append(epoch),
    )
    epochs = {"train": 2, "refine": 20, "calibrate": 1}
    stages = [link.stage for link in parse_recipe(recipe, {"short": "ls"}).chain]
    assert told == [(s, epoch + 1, epochs[s]) for s in stages for epoch in range(epochs[s])]
    assert found.run.trial.seed == seed
    assert found.equal
    assert found.worst.difference == 0.0
    assert {"val_ece", "test_ece", "test_acc"} <= {figure.metric for figure in found.figures}
    assert found.artifact == found.run.trial.artifact


def test_a_gpu_training_is_reproduced_in_its_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = SWEEP.format(name="gpu", task=TASK, storage=tmp_path / "gpu", gpus=0.5)
    text = re.sub("recipes:.*", "recipes: [ce+macal+ts]", text.replace("[0, 1]", "[0]"))
    spec = run_within(parse_sweep(text, "gpu"))
    (result,) = study_results(spec.tracking_uri, "gpu")
    # As earlier runs were tracked.
    uri = changed(spec, tmp_path, "DELETE FROM tags WHERE key = 'calsweep.computed'")
    found = reproduce(result.run_ids[0], tracking_uri=uri, folder=tmp_path / "again")
    assert found.worst.difference == 0.0
    assert found.artifact == found.run.trial.artifact
    assert found.remarks == (
        "train: recorded on a GPU, computed now on cpu in bfloat16",
        "refine: recorded perhaps in one pass with others, computed now on cpu in float32",
    )
    records = (tmp_path / "again" / "artifacts").glob("*/*/*/record.json")
    requests = [json.loads(path.read_text()).get("request", {}) for path in records]
    assert {r["stage"]: r["precision"] for r in requests if r} == {
        "train": "bfloat16",
        "refine": "float32",
        "calibrate": "float32",
    }


CPU = {"device": "cpu", "precision": "float32", "deterministic": True}
LOOSE = {**CPU, "device": "A GPU", "deterministic": False}
NOW_LOOSE = "computed now on A GPU in float32 (not deterministic)"


@pytest.mark.parametrize(
    ("gpu", "then", "now", "remark"),
    [
        (0, CPU, CPU, ""),
        (1, CPU, CPU, ""),
        (0, None, CPU, ""),
        (1, None, {**LOOSE, "deterministic": True}, ""),
        (1, None, CPU, "train: recorded on a GPU, computed now on cpu in float32"),
        (1, LOOSE, LOOSE, f"train: recorded on A GPU in float32 (not deterministic), {NOW_LOOSE}"),
        (1, None, LOOSE, f"train: recorded on A GPU in float32 (not deterministic), {NOW_LOOSE}"),
        (0, CPU, LOOSE, f"train: recorded on cpu in float32, {NOW_LOOSE}"),
        (
            0,
            {**CPU, "precision": "bfloat16"},
            CPU,
            "train: recorded on cpu in bfloat16, computed now on cpu in float32",
        ),
        (
            0,
            {**CPU, "together": 3},
            CPU,
            "train: recorded on cpu in float32 in one pass with 2 others, computed now on cpu in "
            "float32",
        ),
    ],
)
def test_reproduce_prints_why_figures_need_not_agree(gpu, then, now, remark):
    run: Any = SimpleNamespace(
        trial=SimpleNamespace(computed={"train": then} if then else {"refine": LOOSE}),
        study=SimpleNamespace(
            origin={"resources": {"train": {"gpu": gpu}, "refine": {"gpu": 1 - gpu}}}
        ),
    )
    assert reproducing._remark(run, "train", now) == remark


def test_a_stage_has_the_resources_of_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(reproducing, "trial_device", lambda *given: asked.append(given))
    resources = {"train": {"cpu": 3, "gpu": 0.5}, "refine": {"cpu": 2, "gpu": 0.0}}
    for deterministic, stage in ((True, "train"), (False, "refine")):
        origin = {"resources": resources, "deterministic": deterministic}
        reproducing.prepare_process(origin, stage)
    reproducing.prepare_process({"resources": resources}, "refine")  # As of earlier runs.
    assert asked == [3, (0.5, True), 2, (0.0, False), 2, (0.0, False)]


def test_reproducing_has_documented_defaults(spec, results, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", spec.tracking_uri)
    roots: list[Path] = []
    real = reproducing.prepare

    def seen(dataset: str, root: Path, *more: Any, **settings: Any) -> PreparedData:
        roots.append(root)
        return real(dataset, root, *more, **settings)

    monkeypatch.setattr(reproducing, "prepare", seen)
    run_id = results["ce"].run_ids[0]
    plain = reproduce(run_id, folder=tmp_path / "plain")
    other = reproduce(run_id, folder=str(tmp_path / "other"), data_root="d", tolerance=0.25)
    assert (plain.run.trial.run_id, plain.equal, other.equal) == (run_id, True, True)
    assert (plain.tolerance, other.tolerance) == (1e-6, 0.25)
    assert roots == [Path("data"), Path("d")]


def test_a_run_without_test_figures_gets_none(spec, results, tmp_path):
    uri = changed(spec, tmp_path, "DELETE FROM latest_metrics WHERE key LIKE 'test_%'")
    again = tmp_path / "again"
    found = reproduce(results["ce"].run_ids[0], tracking_uri=uri, folder=again)
    assert found.equal
    assert {figure.metric[:4] for figure in found.figures} == {"val_"}
    assert [path.name for path in (again / "artifacts").iterdir() if path.is_dir()] == ["train"]


def test_data_are_prepared_as_the_task_says(tmp_path, monkeypatch):
    key, settings, asked = "ab" * 32, {"kind": "probabilities"}, list[Any]()

    def prepare(*place: Any, **more: Any) -> Any:
        asked.append((*place, more["settings"]))
        return SimpleNamespace(key=key)

    monkeypatch.setattr(reproducing, "prepare", prepare)
    splits = {"first": {"seed": 3}, "own": {"seed": 4}}
    origin = {"dataset": "rows", "inputs": settings, "split": splits["first"]}
    study = SimpleNamespace(fingerprint=key, origin={**origin, "splits": {"7": splits["own"]}})
    for seed in (7, 8):
        run: Any = SimpleNamespace(study=study, trial=SimpleNamespace(run_id="r", seed=seed))
        reproducing._same_data(run, "root", tmp_path)
    places = ("rows", Path("root")), (tmp_path / "data", settings)
    first, own = ((*places[0], SplitSpec(**split), *places[1]) for split in splits.values())
    assert asked == [first, own, first]


def test_the_figure_that_differs_most_decides() -> None:
    figures = [Comparison("val_ece", 0.5, 0.5), Comparison("val_nll", 0.5, 0.25)]
    run: Any = None
    found = Reproduction(run, (*figures, Comparison("val_acc", 0.5, 0.625)), 0.25, "")
    assert (found.worst.metric, found.worst.difference, found.equal) == ("val_nll", -0.25, True)
    assert not replace(found, tolerance=0.249).equal


def test_the_command_tells_equal_from_different(spec, results, tmp_path, capsys):
    run_id, uri = results["ce"].run_ids[0], spec.tracking_uri
    assert main(["run", "--reproduce", run_id, "--tracking-uri", uri]) == 0
    printed = capsys.readouterr().out
    assert "equal: no figure differs by more than 1e-06" in printed
    assert "need not agree" not in printed
    other = changed(
        spec,
        tmp_path,
        "UPDATE latest_metrics SET value = value + 0.25 "
        f"WHERE run_uuid = '{run_id}' AND key = 'val_ece'",
        "UPDATE tags SET value = replace(value, 'cpu', 'Some GPU') WHERE key = 'calsweep.computed'",
    )
    assert main(["run", "--reproduce", run_id, "--tracking-uri", other]) == 1
    printed = capsys.readouterr().out
    assert "different: val_ece by -2.50e-01, more than 1e-06" in printed
    recorded = "train: recorded on Some GPU in float32, computed now on cpu in float32"
    assert f"results may differ: {recorded}\n" in printed


def test_reproduce_refuses_other_data_and_a_used_folder(spec, results, tmp_path):
    run_id, uri, used = results["ce"].run_ids[0], spec.tracking_uri, Storage.of(spec).folder
    other = changed(spec, tmp_path, "UPDATE tags SET value = 'f00' WHERE key LIKE '%.fingerprint'")
    (tmp_path / "early").mkdir()
    early = changed(spec, tmp_path / "early", "DELETE FROM tags WHERE key = 'calsweep.origin'")
    now = f"'digits' now has hash {results['ce'].fingerprint[:12]}; only the same data can "
    for run, address, told in (
        (run_id, uri, f"{used} already has artifacts; use a fresh folder"),
        (run_id, other, f"run {run_id} was computed on data with hash f00, but {now}"),
        (run_id, early, f"run {run_id} was tracked without the settings to compute it again"),
        ("nope", uri, "no run 'nope' on"),
    ):
        folder = used if (run, address) == (run_id, uri) else tmp_path / "fresh"
        with pytest.raises(InputError, match=f"^{re.escape(told)}"):
            reproduce(run, tracking_uri=address, folder=folder)


def test_a_loaded_champion_gives_the_stored_predictions(spec, results, tmp_path, monkeypatch):
    uri, storage = spec.tracking_uri, str(Storage.of(spec).folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for version, recipe in enumerate(("short+ts", "ce+macal+ts"), start=1):
        result = results[recipe]
        champion = promote(result.run_ids[0], uri, storage)
        assert (champion.model, champion.version) == ("digits.convnet.tiny", str(version))
        assert champion.new
        rows = predictions(spec, result.predictions[0])
        loaded = mlflow.pyfunc.load_model(CHAMPION)
        probs = loaded.predict(prepared(spec, result).test().values)
        assert np.array_equal(probs, rows["log_probs"].exp().numpy())
    again = promote(results["ce+macal+ts"].run_ids[0], uri, storage)
    assert (again.version, again.new) == ("2", False)
    back = promote(results["short+ts"].run_ids[0], uri, storage)
    assert (back.version, back.new) == ("1", True)
    mlflow.artifacts.download_artifacts(CHAMPION, dst_path=str(tmp_path))
    files = [path.suffix for path in tmp_path.rglob("*.*") if path.is_file()]
    assert set(files) <= {".json", ".safetensors", ".lock"}


def test_tables_report_and_data_are_on_the_tracker(spec, results):
    outcome = SweepOutcome(spec, "finished", tuple(results.values()), True, 1.0)
    SweepFolder.of(spec).spec_file.write_text("name: tiny")
    assert [show_outcome(outcome) for _ in range(2)] == [0, 0]
    client = MlflowClient(spec.tracking_uri)
    runs = client.search_runs([client.get_experiment_by_name(spec.name).experiment_id])
    (run,) = [run for run in runs if run.data.tags["calsweep.kind"] == "outcome"]
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    tables = {f"table.{ending}" for ending in ("md", "csv", "tex", "html")}
    assert files == {"sweep.yaml", "report.html"} | tables
    assert run.data.tags["team"] == "red"
    studies = [run for run in runs if run.data.tags["calsweep.kind"] == "study"]
    data = [[each.dataset for each in study.inputs.dataset_inputs] for study in studies]
    fingerprint = studies[0].data.tags["calsweep.fingerprint"]
    assert {(each.name, each.digest) for (each,) in data} == {("digits", fingerprint[:36])}


def test_best_promotes_the_trial_that_it_prints(spec, results, capsys):
    words = ["best", "--task", TASK, "--recipe", "ce", "--tag", "team=red", "--promote"]
    assert main([*words, "--storage", str(Storage.of(spec).folder), "--format", "fixed"]) == 0
    printed = capsys.readouterr()
    assert "  fixed:\n    ce: {}\n" in printed.out
    assert "digits.convnet.tiny version" in printed.err
    (best,) = best_trials(spec.tracking_uri, TASK, "ce")
    assert best.trial.run_id == results["ce"].run_ids[0]


def test_a_champion_without_its_weights_is_refused(spec, results, tmp_path, monkeypatch):
    uri, run_id = spec.tracking_uri, results["ce"].run_ids[0]
    with pytest.raises(
        InputError, match=rf"its weights are not in {tmp_path}.*--reproduce {run_id}"
    ):
        promote(run_id, uri, str(tmp_path))
    promote(run_id, uri, str(Storage.of(spec).folder))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    folder = mlflow.artifacts.download_artifacts(CHAMPION, dst_path=str(tmp_path))
    (weights,) = Path(folder).rglob("weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    for load in (load_chain, mlflow.pyfunc.load_model):
        with pytest.raises(InputError, match="missing or damaged"):
            load(folder)
