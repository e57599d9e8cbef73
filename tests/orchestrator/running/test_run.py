"""Whole sweeps on real data: what lands in journal, MLflow, store and table."""

import csv
import io
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from orchestrator import best_config, comparison_table, run_sweep
from orchestrator.cli import main
from orchestrator.running.run import SweepOutcome
from orchestrator.statistics import search_gains
from orchestrator.storage.journal import read_events
from orchestrator.storage.storage import Storage
from orchestrator.sweep.plan import searched_parameters, starting_values
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tables.arrange import build_table
from orchestrator.tables.make import render
from tests.orchestrator.databases import place_database
from tests.orchestrator.one_process import one_process
from trainables.common.stages import ArtifactRef
from trainables.metrics import calibration_report
from trainables.plugins import load_plugins

pytestmark = pytest.mark.slow

TASK = "digits/convnet/quick"
MACAL = ("ce+macal", "gce+macal")
GCE = Path(__file__).parents[3] / "examples/plugin/calsweep_example/gce.py"
SWEEP = """
name: {name}
plugins: ["{plugin}"]
tasks:
  - name: digits/convnet/quick
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 4}}
    split: {{train_limit: 600, test_limit: 200}}
recipes: [ce, gce, "*+ts", "*+macal"]
search:
  trials: 3
  accuracy_tolerance: 0.05
  keep_default: false
  fixed: {{macal: {{epochs: 8, lr: 0.1, q0: 0.1, sparsity: fixed}}}}
storage: {storage}
"""


def make_spec(storage: Path, name: str = "quick") -> SweepSpec:
    return parse_sweep(SWEEP.format(name=name, storage=storage, plugin=GCE), name)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield place_database(tmp_path_factory.mktemp("storage"))
    load_plugins((), installed=True)


@pytest.fixture(scope="module")
def outcome(storage: Path) -> SweepOutcome:
    """Stop the sweep by Ctrl-C in the middle of its search on Ray, and go on in this process."""
    path, journal = storage / "quick.yaml", storage / "sweeps" / "quick" / "journal.jsonl"
    path.write_text(SWEEP.format(name="quick", storage=storage, plugin=GCE))
    command = [sys.executable, "-m", "orchestrator", "run", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    _wait_for_finished_trials(journal, 3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 130
    assert "calsweep run --resume quick" in output
    with one_process():  # tests/chaos resumes in other processes, over and over.
        return run_sweep(Storage(storage).load_spec("quick"), resume=True)


@pytest.fixture(scope="module")
def events(outcome: SweepOutcome) -> list[Any]:
    return read_events(outcome.journal)[0]


@pytest.fixture(scope="module")
def client(outcome: SweepOutcome) -> MlflowClient:
    return MlflowClient(outcome.spec.tracking_uri)


@pytest.fixture(scope="module")
def runs(client: MlflowClient) -> list[Run]:
    experiment = client.get_experiment_by_name("quick")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], max_results=1000))


@pytest.fixture(scope="module")
def trials(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.data.tags["calsweep.kind"] == "trial"]


def of_kind(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event.event == kind]


def test_every_row_has_finite_test_metrics(outcome: SweepOutcome) -> None:
    assert outcome.status == "finished"
    assert outcome.tracked
    recipes = [result.recipe for result in outcome.results]
    assert sorted(recipes) == ["ce", "ce+macal", "ce+ts", "gce", "gce+macal", "gce+ts"]
    for result in outcome.results:
        (metrics,) = result.test
        assert (result.status, metrics["acc"] > 0.5) == ("finished", True)
        assert all(math.isfinite(value) for value in metrics.values())


def test_the_table_agrees_with_the_stored_predictions(outcome: SweepOutcome) -> None:
    store = Storage.of(outcome.spec).store()
    table = csv.DictReader(io.StringIO(render(build_table(outcome.results), "csv")))
    lines = {line["recipe"]: line for line in table}
    assert len(lines) == 6
    for result in outcome.results:
        (key,) = result.predictions
        artifact = store.find(ArtifactRef("evaluate", key))
        assert artifact is not None
        rows = artifact.tensors("test")
        report = calibration_report(logits=rows["log_probs"].double(), labels=rows["labels"])
        found = {name: report[name] for name in ("acc", "nll", "brier", "ece", "cwece")}
        shown = {name: float(lines[result.recipe][f"{name}_mean"]) for name in found}
        assert shown == pytest.approx(found, abs=1e-6)


def test_every_trial_is_in_mlflow_under_its_study(runs, trials, events):
    studies = {r.info.run_id: r for r in runs if r.data.tags["calsweep.kind"] == "study"}
    started = {event.key: event.study for event in of_kind(events, "trial_started")}
    assert len(started) == 12
    assert sorted(run.data.tags["calsweep.key"] for run in trials) == sorted(started)
    for run in trials:
        parent = studies[run.data.tags["mlflow.parentRunId"]].data.tags["calsweep.study"]
        assert run.info.status == "FINISHED"
        assert parent == started[run.data.tags["calsweep.key"]]


def test_the_budget_is_spent_exactly(events: list[Any]) -> None:
    studies = {event.key: event.study for event in of_kind(events, "trial_started")}
    ended = [event.key for event in of_kind(events, "trial_finished")]
    counts = Counter(studies[key].split("|")[1] for key in ended)
    assert counts == {"ce": 1, "ce+ts": 1, "gce+ts": 1, "gce": 3, "ce+macal": 3, "gce+macal": 3}


@pytest.mark.parametrize("recipe", ["gce", "ce+macal"])
def test_best_is_the_lowest_validation_objective(outcome, trials, recipe):
    (best,) = best_config(TASK, recipe, tracking_uri=outcome.spec.tracking_uri)
    by_hand = min(
        (run for run in trials if run.data.tags["calsweep.recipe"] == recipe),
        key=lambda run: (run.data.metrics["objective"], run.data.metrics["trial_number"]),
    )
    found = (by_hand.info.run_id, by_hand.data.metrics["objective"])
    assert (best.run_id, best.objective) == found


def test_best_can_be_fed_back(outcome: SweepOutcome, storage: Path) -> None:
    (best,) = best_config(TASK, "gce", tracking_uri=outcome.spec.tracking_uri)
    again = make_spec(storage).model_dump(mode="json")
    again.update(name="fed-back", recipes=["gce"])
    again["search"].update(fixed=best.fixed)
    spec = SweepSpec.model_validate(again)
    assert searched_parameters(spec, "gce", spec.tasks[0]) == {}
    assert starting_values(spec, "gce", spec.tasks[0]) == best.fixed["gce"]


def test_only_chosen_configurations_are_measured(client, trials, events):
    """On test data, after the last search trial; their runs carry diagram and configuration."""
    kinds = [event.event for event in events]
    assert "trial_finished" not in kinds[kinds.index("evaluated") :]
    chosen = {event.chosen for event in of_kind(events, "study_closed")}
    assert chosen == {event.key for event in of_kind(events, "evaluated")}
    for run in trials:
        measured = run.data.tags["calsweep.key"] in chosen
        assert any(name.startswith("test_") for name in run.data.metrics) == measured
        names = {entry.path for entry in client.list_artifacts(run.info.run_id)}
        assert ({"reliability.png", "configuration.yaml"} <= names) == measured


def test_the_gain_of_each_search_is_known(outcome: SweepOutcome) -> None:
    """The first trial, that of the published values, is measured beside the chosen one."""
    store = Storage.of(outcome.spec).store()
    searched = [result for result in outcome.results if result.searched]
    assert sorted(result.recipe for result in searched) == ["ce+macal", "gce", "gce+macal"]
    found = search_gains(outcome.results, store, "nll", draws=1)
    assert found.bootstrap.differences.keys() == {result.recipe for result in searched}
    for result in searched:
        default = store.find(ArtifactRef("evaluate", result.default_predictions))
        assert default is not None
        gap = result.test[0]["nll"] - default.record["metrics"]["nll"]
        assert found.bootstrap.differences[result.recipe].value == pytest.approx(gap, abs=1e-6)
    assert found.absent == dict.fromkeys(["ce", "ce+ts", "gce+ts"], "nothing was searched")


def test_epochs_are_tracked(client: MlflowClient, trials: list[Run]) -> None:
    run = next(run for run in trials if run.data.tags["calsweep.recipe"] == "ce")
    history = client.get_metric_history(run.info.run_id, "val_ece")
    assert sorted({point.step for point in history}) == [1, 2, 3, 4]


def test_trials_run_side_by_side(events: list[Any]) -> None:
    """Optuna inside Ray is known to be asked for one trial at a time unless told otherwise.

    How long each computes is left to the machine: a busy one may start the next process late.
    """
    steps = {"trial_started": 1, "trial_finished": -1}
    search = takewhile(lambda event: event.event != "sweep_ended", events)
    out = accumulate(steps.get(event.event, 0) for event in search)
    assert max(out) > 1


def test_nothing_is_trained_twice(storage: Path, events: list[Any]) -> None:
    """The features are those of each network that a refinement builds on."""
    started = {event.key: event.stage for event in of_kind(events, "trial_started")}
    stages = Counter(started.values()) | {"features": 2}
    stored = (storage / "artifacts").glob("*/*/*/manifest.json")
    counts = Counter(path.parts[-4] for path in stored)
    assert {stage: counts[stage] for stage in stages} == stages


def test_server_and_journal_give_the_same_table(outcome: SweepOutcome) -> None:
    tracked = comparison_table("quick", tracking_uri=outcome.spec.tracking_uri)
    assert render(tracked, "markdown") == table_of(outcome)


def table_of(outcome: SweepOutcome) -> str:
    return render(build_table(outcome.results), "markdown")


@one_process()
def test_a_diverging_trial_fails_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
name: diverging
tasks:
  - name: good
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 2}}
  - name: bad
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 2, lr: 1.0e+30}}
recipes: [ce, ce+tst]
resources: {{concurrent: 1}}
search:
  sampler: grid
  spaces: {{tst: {{lr: {{choices: [0.1, 1.0e+37]}}}}}}
  fixed: {{tst: {{epochs: 2}}}}
storage: {storage}
"""
    path = tmp_path / "diverging.yaml"
    path.write_text(text.format(storage=tmp_path / "storage"))
    assert main(["run", str(path), "--quiet"]) == 1
    uri = f"sqlite:///{tmp_path / 'storage' / 'mlflow.db'}"
    results = comparison_table("diverging", tracking_uri=uri).results
    refined = results["ce+tst", "good"]
    assert (refined.status, refined.trials_finished, refined.trials_failed) == ("finished", 1, 1)
    assert results["ce", "bad"].status == "failed"
    assert "nan" in results["ce", "bad"].reason.lower()
    assert results["ce+tst", "bad"].status == "failed"
    assert "failed" in capsys.readouterr().out
    journal = tmp_path / "storage" / "sweeps" / "diverging" / "journal.jsonl"
    ends = of_kind(read_events(journal)[0], "trial_finished")
    assert {end.fault for end in ends} == {""}
    # What the configuration is to blame for is final.
    assert main(["run", str(path), "--quiet"]) == 1
    assert of_kind(read_events(journal)[0], "trial_finished") == ends


def test_an_interrupted_sweep_resumes_to_the_table_of_a_whole_one(outcome, events, tmp_path):
    ends = [event.status for event in of_kind(events, "sweep_ended")]
    assert ends == ["interrupted", "finished"]
    with one_process():
        whole = run_sweep(make_spec(tmp_path / "storage"))
    assert table_of(whole) == table_of(outcome)


def _wait_for_finished_trials(journal: Path, count: int) -> None:
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        if journal.exists() and len(of_kind(read_events(journal)[0], "trial_finished")) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"{journal} has no {count} finished trials after a quarter of an hour")


def test_a_replay_trains_nothing(outcome, storage, tmp_path, capsys):
    stages = [storage / "artifacts" / stage for stage in ("train", "refine", "calibrate")]
    before = sorted(path for stage in stages for path in stage.glob("*/*"))
    out = tmp_path / "replay"
    command = [
        "search",
        "replay",
        str(storage),
        "--sweep",
        "quick",
        "--searches",
        "2",
        "--out",
        str(out),
    ]
    assert main([*command, "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "with its own settings, the replay repeats 6 of 6 choices" in said
    assert "\n|---" in said.replace(" ", "")
    assert sorted(path for stage in stages for path in stage.glob("*/*")) == before
    searches = list(csv.DictReader((out / "searches.csv").open()))
    assert {row["study"] for row in searches} == {f"{TASK}|{r}" for r in ("gce", *MACAL)}
    assert {row["strategy"] for row in searches} == {"as run", "random", "nll", "default kept"}
    epochs = list(csv.DictReader((out / "outcomes.csv").open()))
    assert len(epochs) == sum(event.event == "epoch" for event in read_events(outcome.journal)[0])
    assert (out / "replay.png").stat().st_size > 1000
