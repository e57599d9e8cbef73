"""Whole sweeps on real data: what lands in journal, MLflow, store and table."""

from __future__ import annotations

import csv
import io
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import accumulate
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

pytestmark = pytest.mark.slow

TASK = "digits/convnet/quick"
MACAL = ("ce+macal", "mbls+macal")
SWEEP = """
name: {name}
tasks:
  - name: digits/convnet/quick
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 4}}
    split: {{train_limit: 600, test_limit: 200}}
recipes: [ce, mbls, "*+ts", "*+macal"]
search:
  trials: 3
  accuracy_tolerance: 0.05
  fixed: {{macal: {{epochs: 3}}}}
storage: {storage}
"""


def make_spec(storage: Path, name: str = "quick", text: str = SWEEP) -> SweepSpec:
    return parse_sweep(text.format(name=name, storage=storage), name)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place_database(tmp_path_factory.mktemp("storage"))


@pytest.fixture(scope="module")
def outcome(storage: Path) -> SweepOutcome:
    return run_sweep(make_spec(storage))


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


def of_kind(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event.event == kind]


def test_every_row_has_finite_test_metrics(outcome: SweepOutcome) -> None:
    assert outcome.status == "finished"
    assert outcome.tracked
    recipes = ["ce", "mbls", "ce+ts", "mbls+ts", "ce+macal", "mbls+macal"]
    assert sorted(result.recipe for result in outcome.results) == sorted(recipes)
    for result in outcome.results:
        assert result.status == "finished"
        (metrics,) = result.test
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["acc"] > 0.5


def plain_figures(log_probs: list[list[float]], labels: list[int]) -> dict[str, float]:
    """Compute the figures of a table with loops alone."""
    probs = [[math.exp(value) for value in row] for row in log_probs]
    rows, classes = len(probs), len(probs[0])
    tops = [max(range(classes), key=row.__getitem__) for row in probs]

    def binned(pairs: list[tuple[float, bool]]) -> float:
        bins: dict[int, list[float]] = {}
        for share, right in pairs:
            bins.setdefault(max(math.ceil(share * 15) - 1, 0), []).append(share - right)
        return sum(abs(sum(gaps)) for gaps in bins.values()) / rows

    return {
        "acc": sum(top == label for top, label in zip(tops, labels, strict=True)) / rows,
        "nll": -sum(row[y] for row, y in zip(log_probs, labels, strict=True)) / rows,
        "brier": sum(
            (p - (c == y)) ** 2
            for row, y in zip(probs, labels, strict=True)
            for c, p in enumerate(row)
        )
        / rows,
        "ece": binned([(p[t], t == y) for p, t, y in zip(probs, tops, labels, strict=True)]),
        "cwece": sum(
            binned([(row[c], y == c) for row, y in zip(probs, labels, strict=True)])
            for c in range(classes)
        )
        / classes,
    }


def test_the_table_agrees_with_the_stored_predictions(outcome: SweepOutcome) -> None:
    store = Storage.of(outcome.spec).store()
    table = csv.DictReader(io.StringIO(render(build_table(outcome.results), "csv")))
    lines = {line["recipe"]: line for line in table}
    assert len(lines) == 6
    for result in outcome.results:
        (key,) = result.predictions
        artifact = store.find("evaluate", key)
        assert artifact is not None
        rows = artifact.tensors("test")
        found = plain_figures(rows["log_probs"].double().tolist(), rows["labels"].tolist())
        shown = {name: float(lines[result.recipe][f"{name}_mean"]) for name in found}
        assert shown == pytest.approx(found, abs=1e-6)


def test_every_trial_is_in_mlflow_once_finished_and_under_its_study(
    runs: list[Run], events: list[Any]
) -> None:
    studies = {r.info.run_id: r for r in runs if r.data.tags["calsweep.kind"] == "study"}
    trials = [run for run in runs if run.data.tags["calsweep.kind"] == "trial"]
    started = {event.key: event.study for event in of_kind(events, "trial_started")}
    assert Counter(run.data.tags["calsweep.key"] for run in trials) == Counter(list(started))
    for run in trials:
        assert run.info.status == "FINISHED"
        parent = studies[run.data.tags["mlflow.parentRunId"]]
        assert parent.data.tags["calsweep.study"] == started[run.data.tags["calsweep.key"]]


def test_the_budget_is_spent_exactly(events: list[Any]) -> None:
    counts = Counter(event.study.split("|")[1] for event in of_kind(events, "trial_started"))
    assert counts == {"ce": 1, "ce+ts": 1, "mbls+ts": 1, "mbls": 3, "ce+macal": 3, "mbls+macal": 3}


def test_best_is_the_lowest_validation_objective(outcome: SweepOutcome, runs: list[Run]) -> None:
    for recipe in ("mbls", "ce+macal"):
        (best,) = best_config(TASK, recipe, tracking_uri=outcome.spec.tracking_uri)
        by_hand = min(
            (
                run
                for run in runs
                if run.data.tags.get("calsweep.recipe") == recipe
                and run.data.tags["calsweep.kind"] == "trial"
            ),
            key=lambda run: (run.data.metrics["objective"], run.data.metrics["trial_number"]),
        )
        assert best.run_id == by_hand.info.run_id
        assert best.objective == by_hand.data.metrics["objective"]


def test_best_can_be_fed_back(outcome: SweepOutcome, storage: Path) -> None:
    (best,) = best_config(TASK, "mbls", tracking_uri=outcome.spec.tracking_uri)
    again = make_spec(storage).model_dump(mode="json")
    again.update(name="fed-back", recipes=["mbls"])
    again["search"].update(fixed=best.fixed)
    spec = SweepSpec.model_validate(again)
    assert searched_parameters(spec, "mbls") == {}
    assert starting_values(spec, "mbls", spec.tasks[0]) == best.fixed["mbls"]


def test_only_chosen_configurations_have_test_metrics(runs: list[Run], events: list[Any]) -> None:
    chosen = {event.chosen for event in of_kind(events, "study_closed")}
    for run in runs:
        if run.data.tags["calsweep.kind"] == "trial":
            tested = any(name.startswith("test_") for name in run.data.metrics)
            assert tested == (run.data.tags["calsweep.key"] in chosen)


def test_what_each_search_brought_can_be_told(outcome: SweepOutcome) -> None:
    """The first trial, that of the published values, is measured beside the chosen one."""
    store = Storage.of(outcome.spec).store()
    searched = [result for result in outcome.results if result.searched]
    assert sorted(result.recipe for result in searched) == ["ce+macal", "mbls", "mbls+macal"]
    found = search_gains(outcome.results, store, "nll", draws=1)
    assert found.bootstrap.differences.keys() == {result.recipe for result in searched}
    for result in searched:
        default = store.find("evaluate", result.default_predictions)
        assert default is not None
        gap = result.test[0]["nll"] - default.record["metrics"]["nll"]
        assert found.bootstrap.differences[result.recipe].value == pytest.approx(gap, abs=1e-6)
    assert found.absent == dict.fromkeys(["ce", "ce+ts", "mbls+ts"], "nothing was searched")


def test_test_data_are_read_after_the_last_search_trial(events: list[Any]) -> None:
    kinds = [event.event for event in events]
    last_trial = max(i for i, kind in enumerate(kinds) if kind == "trial_finished")
    assert kinds.index("evaluated") > last_trial


def test_chosen_runs_carry_diagram_and_configuration(
    client: MlflowClient, runs: list[Run], events: list[Any]
) -> None:
    evaluated = {event.key for event in of_kind(events, "evaluated")}
    checked = 0
    for run in runs:
        if run.data.tags.get("calsweep.key") in evaluated:
            names = {entry.path for entry in client.list_artifacts(run.info.run_id)}
            assert {"reliability.png", "configuration.yaml"} <= names
            checked += 1
    assert checked == 6


def test_epochs_are_tracked(client: MlflowClient, runs: list[Run]) -> None:
    run = next(
        run
        for run in runs
        if run.data.tags["calsweep.kind"] == "trial" and run.data.tags["calsweep.recipe"] == "ce"
    )
    history = client.get_metric_history(run.info.run_id, "val_ece")
    assert sorted({point.step for point in history}) == [1, 2, 3, 4]


def test_trials_are_out_side_by_side(events: list[Any]) -> None:
    """Optuna inside Ray is known to be asked for one trial at a time unless told otherwise.

    How long each computes is left to the machine: a busy one may start the next process late.
    """
    steps = {"trial_started": 1, "trial_finished": -1}
    out = accumulate(steps.get(event.event, 0) for event in events)
    assert max(out) > 1


def test_nothing_is_trained_twice(storage: Path, events: list[Any]) -> None:
    stages = Counter(event.stage for event in of_kind(events, "trial_started"))
    for stage in ("train", "refine", "calibrate"):
        stored = list((storage / "artifacts" / stage).glob("*/*/manifest.json"))
        assert len(stored) == stages[stage]
    features = list((storage / "artifacts" / "features").glob("*/*/manifest.json"))
    assert len(features) == 2  # one for each network that a refinement builds on


def test_running_it_again_computes_nothing(outcome: SweepOutcome, storage: Path) -> None:
    before = of_kind(read_events(outcome.journal)[0], "trial_finished")
    again = run_sweep(make_spec(storage), resume=True)
    after = of_kind(read_events(outcome.journal)[0], "trial_finished")
    assert before == after
    assert table_of(again) == table_of(outcome)


def test_the_server_and_the_journal_tell_the_same_table(outcome: SweepOutcome) -> None:
    tracked = comparison_table("quick", tracking_uri=outcome.spec.tracking_uri)
    assert render(tracked, "markdown") == table_of(outcome)


def test_another_specification_under_the_same_name_is_refused(
    outcome: SweepOutcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.yaml"
    text = SWEEP.format(name="quick", storage=outcome.spec.storage)
    path.write_text(text.replace("trials: 3", "trials: 4"))
    assert main(["run", str(path)]) == 2
    message = capsys.readouterr().err
    assert "another `search`" in message
    assert "Traceback" not in message


def table_of(outcome: SweepOutcome) -> str:
    return render(build_table(outcome.results), "markdown")


@one_process()
def test_a_diverging_trial_fails_with_its_reason_and_the_sweep_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_an_interrupted_sweep_resumes_to_the_same_table(
    outcome: SweepOutcome, tmp_path: Path
) -> None:
    path = tmp_path / "quick.yaml"
    text = SWEEP.format(name="quick", storage=place_database(tmp_path / "storage"))
    path.write_text(f"{text}resources: {{concurrent: 1}}\n")
    command = [sys.executable, "-m", "orchestrator", "run"]
    process = subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE, text=True)
    journal = tmp_path / "storage" / "sweeps" / "quick" / "journal.jsonl"
    _wait_for_finished_trials(journal, 3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 130
    assert "calsweep run --resume quick" in output
    finished = of_kind(read_events(journal)[0], "trial_finished")

    with one_process():  # tests/chaos resumes in other processes, over and over.
        resume = ["--resume", "quick", "--storage", str(tmp_path / "storage"), "--quiet"]
        assert main(["run", *resume]) == 0
    events = read_events(journal)[0]
    keys = [event.key for event in of_kind(events, "trial_finished")]
    assert len(keys) == len(set(keys)) == 12
    assert keys[: len(finished)] == [event.key for event in finished]
    tracked = comparison_table("quick", tracking_uri=f"sqlite:///{tmp_path}/storage/mlflow.db")
    assert render(tracked, "markdown") == table_of(outcome)


def _wait_for_finished_trials(journal: Path, count: int) -> None:
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        if journal.exists() and len(of_kind(read_events(journal)[0], "trial_finished")) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"{journal} has no {count} finished trials after a quarter of an hour")


def test_a_replay_makes_every_choice_again_and_searches_without_training(
    outcome: SweepOutcome, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [storage / "artifacts" / stage for stage in ("train", "refine", "calibrate")]
    before = sorted(path for stage in stages for path in stage.glob("*/*"))
    out = tmp_path / "replay"
    command = ["replay", str(storage), "--sweep", "quick", "--searches", "2", "--out", str(out)]
    assert main([*command, "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "6 of 6 choices are made again" in said
    assert "\n|---" in said.replace(" ", "")
    assert sorted(path for stage in stages for path in stage.glob("*/*")) == before
    searches = list(csv.DictReader((out / "searches.csv").open()))
    assert {row["study"] for row in searches} == {f"{TASK}|{r}" for r in ("mbls", *MACAL)}
    assert {row["strategy"] for row in searches} == {"as run", "random", "nll", "default kept"}
    epochs = list(csv.DictReader((out / "outcomes.csv").open()))
    assert len(epochs) == sum(event.event == "epoch" for event in read_events(outcome.journal)[0])
    assert (out / "replay.png").stat().st_size > 1000
