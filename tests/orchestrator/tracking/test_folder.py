"""A sweep whose runs are kept as plain files, from its file to its champion."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml

from orchestrator.cli import main
from orchestrator.storage.ledger import Study, Trial
from orchestrator.storage.storage import SweepFolder
from orchestrator.tracking import (
    TrackedTrial,
    best_trials,
    champion,
    open_tracker,
    study_results,
    sync,
)
from orchestrator.tracking._changes import Change
from orchestrator.tracking.champion import promote
from orchestrator.tracking.tracker import RefusedError, RunQuery, UnreachableError
from tests.orchestrator.tiny_sweep import tiny_sweep
from trainables.common.errors import InputError
from trainables.common.paths import SYNC
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData
from trainables.stages.export import load_chain
from trainables.store.artifacts import ArtifactStore


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tracked"


@pytest.mark.slow
def test_a_sweep_file_names_a_folder_and_every_question_is_answered(
    folder, tmp_path, capsys, database, monkeypatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri, storage = f"folder:{folder}", str(tmp_path / "storage")
    spec = tiny_sweep(tmp_path / "storage", uri=uri)

    sweep = SweepFolder.of(spec)
    sweep.write_spec(spec)

    def say(*arguments):
        code = main([*arguments])
        return code, capsys.readouterr().out

    def told(uri):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        found = [say(*call) for call in (("table", "tiny"), ("best", "tiny", *recipe))]
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        return found

    assert main(["storage", "sync", str(sweep.path)]) == 0
    assert capsys.readouterr().out.endswith(f"has reached {uri}\n")
    recipe = ("--recipe", "ce+macal+ts")
    plain = told(uri)
    assert say("report", "tiny", "--tracking-uri", uri, "--storage", storage)[0] == 0

    sync(sweep.journal, database)
    same = told(database)
    assert plain[0] == same[0]
    left, right = (yaml.safe_load(answer[1]) for answer in (plain[1], same[1]))
    assert {**left, "run_id": ""} == {**right, "run_id": ""}

    (result,) = (r for r in study_results(uri, "tiny") if r.recipe == "ce+macal+ts")
    assert result.run_ids[0] == left["run_id"]
    first, again = (promote(left["run_id"], uri, storage) for _ in range(2))
    assert (first.version, first.new, again.version, again.new) == ("1", True, "1", False)
    (version,) = json.loads(next(folder.glob("models/*.json")).read_text())["versions"]
    facts = {name: left[name] for name in ("task", "recipe", "sweep", "code", "fingerprint")}
    facts |= {"run": left["run_id"], "objective": repr(left["objective"])}
    figures = left["validation"] | {f"test_{name}": v for name, v in result.test[0].items()}
    facts |= {name: repr(value) for name, value in figures.items()}
    tagged = {f"calsweep.{name}": value for name, value in facts.items()}
    assert tagged.items() <= version["tags"].items()
    network = load_chain(next(folder.rglob("chain.json")).parent)
    store = ArtifactStore(tmp_path / "storage" / "artifacts")
    stored = store.find(ArtifactRef("evaluate", result.predictions[0])).tensors("test")["log_probs"]
    data = PreparedData.open(tmp_path / "storage" / "data" / result.fingerprint)
    assert network(data.test().values).equal(stored)


def test_a_champion_tells_where_it_comes_from(tmp_path, monkeypatch):
    told = {"study": "t|ce", "task": "t", "recipe": "ce", "trials": 1, "row": True}
    study = Study(**told, index=0, fingerprint="f1", code="of the study")
    trial = Trial(
        **{"study": "t|ce", "number": 1, "key": "k", "role": "search", "seed": 0},
        **{"stage": "train", "configuration": {}, "artifact": "a1", "run_id": "r1"},
        **{"code": "of the trial", "objective": 0.1, "test": {"ece": 0.75}},
        metrics={"val_ece": 0.25, "val_acc": 0.5},
    )
    tracker, store = Mock(), Mock(root=tmp_path)
    tracker.register.return_value = ("t", "3", True)
    stand_ins = {
        "tracked_trial": Mock(return_value=TrackedTrial(trial, study, "s")),
        "Storage": lambda storage: SimpleNamespace(store=lambda: store, data=tmp_path),
        "PreparedData": Mock(**{"open.return_value.info": "the data"}),
        "export_chain": Mock(),
        "open_tracker": Mock(return_value=tracker),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(champion, name, stand_in)
    found = promote("r1", "folder:/t", "storage")
    assert found == champion.Champion("t", "3", "champion", "r1", True)
    facts = {"task": "t", "recipe": "ce", "sweep": "s", "run": "r1", "code": "of the trial"}
    facts |= {"fingerprint": "f1", "objective": "0.1"}
    facts |= {"val_ece": "0.25", "val_acc": "0.5", "test_ece": "0.75"}
    tags = {f"calsweep.{name}": value for name, value in facts.items()}
    stand_ins["PreparedData"].open.assert_called_once_with(tmp_path / "f1")
    folder = tracker.register.call_args.args[2]
    stand_ins["export_chain"].assert_called_once_with(store, ("train", "a1"), "the data", folder)
    tracker.register.assert_called_once_with("t", "r1", folder, tags, "champion")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    promote("r1", storage=str(tmp_path))
    uris = ["folder:/t", f"sqlite:///{tmp_path}/mlflow.db"]
    for asked in (stand_ins["tracked_trial"], stand_ins["open_tracker"]):
        assert [one.args[0] for one in asked.call_args_list] == uris
    for contained, trial.artifact in ((False, "a1"), (True, "")):
        store.contains.return_value = contained
        with pytest.raises(InputError) as refusal:
            promote("r1", "folder:/t", "storage")
        assert str(refusal.value) == (
            f"run r1: its weights are not in {tmp_path}; name the sweep's storage, or compute them "
            "again with `calsweep run --reproduce r1`"
        )


def test_an_experiment_that_was_thrown_away_is_delivered_again(writer, folder):
    writer.start()
    study = writer.open("ce")
    writer.trial(study, 0, 0.25)
    uri = f"folder:{folder}"
    assert sync(writer.path, uri).runs == 2
    assert sync(writer.path, uri).events == 0
    (record, *_) = folder.rglob("runs/*.json")
    record.write_text('{"name": "half')
    with pytest.raises(InputError) as error:
        best_trials(uri, study.partition("|")[0], "ce")
    told = re.sub(r"damaged \(.*\); ", "damaged (HOW); ", str(error.value))
    assert told == (f"{record} is damaged (HOW); delete its experiment's folder, then `{SYNC}`")
    (experiment,) = (folder / "experiments").iterdir()
    for file in experiment.rglob("*.json"):
        file.unlink()
    assert sync(writer.path, uri).events == 7
    (best,) = best_trials(uri, study.partition("|")[0], "ce")
    assert best.trial.objective == 0.25


def test_runs_and_memory_are_replaced_as_a_whole(writer, folder, tmp_path, monkeypatch):
    """Who is killed while writing leaves what was there, or all that is new, on the disk."""
    synced = []

    def sync_file(file):
        if stat.S_ISREG(os.fstat(file).st_mode):
            synced.append(os.pread(file, 1 << 20, 0))

    monkeypatch.setattr(os, "fsync", sync_file)
    writer.start()
    study = writer.open("ce")
    sync(writer.path, f"folder:{folder}")
    (run,) = folder.rglob("runs/*.json")
    places = {run: tmp_path / "run", writer.path.with_name("shipped.json"): tmp_path / "memory"}
    before = {}
    for place, kept in places.items():
        before[kept] = place.read_text()
        kept.hardlink_to(place)
    writer.close(study, None)
    sync(writer.path, f"folder:{folder}")
    assert {kept: kept.read_text() for kept in before} == before
    assert all(place.read_text() != before[kept] for place, kept in places.items())
    assert all(place.read_bytes() in synced for place in places)


def test_a_folder_says_what_it_refuses(folder, tmp_path):
    tracker = open_tracker(f"folder:{folder}", create=True)
    experiment, _ = tracker.open_experiment("s", tmp_path)
    run = tracker.create_run(experiment.id, "a run", {}, 1)
    tracker.log(run, Change("k", params={"ce.margin": "1", "ce.weight": "2"}))
    none, there = tmp_path / "none", tmp_path / "there"
    there.mkdir()
    tracker.register("d/net", run, there, {}, "champion")
    said = {
        "no run 'r' in FOLDER": lambda: tracker.run("r"),
        "run ID: parameter ce.weight has another value already": lambda: tracker.log(
            run, Change("k", params={"ce.new": "1", "ce.weight": "3"}, tags={"new": "1"})
        ),
        "artifact a.png: NONE does not exist": lambda: tracker.upload(run, "a.png", none),
        "registered model 'd.net' is not that of task 'd.net'; rename or delete it": lambda: (
            tracker.register("d.net", run, there, {}, "champion")
        ),
    }
    before = {file: file.read_text() for file in folder.rglob("*.json")}
    for text, action in said.items():
        with pytest.raises((RefusedError, InputError)) as refusal:
            action()
        assert {file: file.read_text() for file in folder.rglob("*.json")} == before
        places = {str(folder): "FOLDER", str(none): "NONE", run: "ID"}
        told = str(refusal.value)
        for place, name in places.items():
            told = told.replace(place, name)
        assert told == text


def test_where_nothing_is_tracked_none_are_named(folder):
    uri = open_tracker(f"folder:{folder}", create=True).uri
    asked = {"task 't'": None, "sweep 's'": "s"}
    for what, sweep in asked.items():
        with pytest.raises(InputError) as refusal:
            best_trials(uri, "t", "ce", sweep)
        assert str(refusal.value) == f"no {what} on {uri}; there are: none"


def test_a_model_that_was_half_stored_is_completed(folder, tmp_path):
    """As by whoever was killed meanwhile."""
    tracker = open_tracker(f"folder:{folder}", create=True)
    run = tracker.create_run(tracker.open_experiment("s", tmp_path)[0].id, "a run", {}, 1)
    exported = tmp_path / "exported"
    (exported / "weights").mkdir(parents=True)
    for name in ("chain.json", "weights/0.bin"):
        (exported / name).write_text(name)
    (half,) = (file.parents[1] / "files" / run / "model" for file in folder.rglob("runs/*.json"))
    half.mkdir(parents=True)
    (half / "chain.json").write_text("half")
    assert tracker.register("d/net", run, exported, {}, "champion") == ("d.net", "1", True)
    assert (half / "chain.json").read_text() == "chain.json"


def test_a_folder_that_cannot_be_written_counts_as_away(writer, folder, monkeypatch):
    writer.start()
    writer.open("ce")
    open_tracker(f"folder:{folder}", create=True)
    (folder / "experiments" / writer.sweep).write_text("in the way")
    monkeypatch.setattr("orchestrator.tracking._shipper.PATIENCE_ONCE", 0.0)
    with pytest.raises(UnreachableError) as away:
        sync(writer.path, f"folder:{folder}")
    place = folder / "experiments" / writer.sweep / "experiment.json"
    assert str(away.value) == f"tracking folder: {place}: File exists"


def test_many_questions_read_runs_once_and_hear_of_every_change(folder, tmp_path):
    tracker = open_tracker(f"folder:{folder}", create=True)
    place, _ = tracker.open_experiment("one", tmp_path)
    first = tracker.create_run(place.id, "a", {"kind": "trial"}, 1)
    file = folder / "experiments" / place.id / "runs" / f"{first}.json"

    def known() -> list[tuple[str, str]]:
        return [(run.id, run.status) for run in tracker.runs(RunQuery([place.id], {}))]

    time.sleep(0.2)
    assert known() == known() == [(first, "RUNNING")]
    file.write_text("not read again: only a file that takes its place is news")
    assert known() == [(first, "RUNNING")]
    tracker.delete_run(first)
    assert known() == []
    for number in range(3):  # At once: two changes may have one time.
        second = tracker.create_run(place.id, "b", {"kind": "trial"}, 2 + number)
        assert (second, "RUNNING") in known()
        tracker.set_status(second, "FINISHED", 3)
        assert (second, "FINISHED") in known()
