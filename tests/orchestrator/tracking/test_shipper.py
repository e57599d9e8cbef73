import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import mlflow
import pytest
from mlflow import MlflowClient

from orchestrator.storage.events import to_line
from orchestrator.storage.journal import read_events
from orchestrator.tracking import __main__ as program
from orchestrator.tracking import _shipper, open_tracker, start_shipper, study_results, sync
from orchestrator.tracking._changes import Change
from orchestrator.tracking._process import URI_VARIABLE, Fault, ShipperProcess
from orchestrator.tracking._shipper import Shipment
from orchestrator.tracking.folder import FolderTracker
from orchestrator.tracking.mlflow.server import MlflowTracker
from orchestrator.tracking.tracker import RefusedError, RunQuery, Tracker, UnreachableError
from tests.orchestrator.databases import place_database
from trainables.common.errors import InputError

TASK = "digits/convnet/digits"


def runs_of(uri, sweep, condition=""):
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(sweep)
    return {
        run.data.tags["calsweep.key"]: run
        for run in client.search_runs([experiment.experiment_id], condition)
    }


def small_sweep(writer, tmp_path):
    """Write a sweep of one study with four trials: chosen, failed, pruned, another seed."""
    writer.start()
    study = writer.open("mbls", trials=3)
    configuration = {"mbls": {"margin": 6.0}}
    good = writer.trial(study, 0, 0.25, configuration=configuration)
    bad = writer.begin(study, 1)
    writer.finish(bad, status="failed", reason="ValueError: loss is NaN\nin epoch 2")
    cut = writer.begin(study, 2)
    writer.epochs(cut, 1)
    writer.finish(cut, status="pruned", val_ece=0.5)
    again = writer.trial(study, 0, 0.3, role="seed", seed=1, configuration=configuration)
    writer.close(study, good, finished=1, failed=1)
    picture = writer.picture("some picture.png")
    writer.evaluate(good, study, test_ece=0.02, artifacts={"reliability.png": str(picture)})
    writer.evaluate(again, study, seed=1, test_ece=0.03)
    writer.end()
    return study, good, bad, cut, again


def test_a_sweep_becomes_a_run_a_study_and_a_run_a_trial(writer, tmp_path):
    study, good, bad, cut, again = small_sweep(writer, tmp_path)
    shipment = sync(writer.path, f"folder:{tmp_path}/tracked")
    assert (shipment.events, shipment.runs, shipment.refused) == (21, 5, [])
    runs = by_key(runs_in(tmp_path))
    assert {key: run["status"] for key, run in runs.items()} == {
        **{study: "FINISHED", good: "FINISHED", bad: "FAILED", cut: "KILLED", again: "FINISHED"}
    }
    parent = runs[study]
    assert {name: points[-1][-1] for name, points in parent["metrics"].items()} == pytest.approx(
        {
            **{"trials_finished": 1.0, "trials_failed": 1.0, "chosen_objective": 0.25},
            **{"test_seeds": 2.0, "test_ece": 0.025, "test_ece_std": 0.01 / 2**0.5},
        }
    )
    assert parent["params"] == runs[good]["params"]
    assert runs[again]["name"] == "mbls ~1"
    assert runs[bad]["tags"]["calsweep.reason"] == "ValueError: loss is NaN\nin epoch 2"


def test_a_folder_has_all_facts_of_a_study_and_a_trial(writer, tmp_path):
    """A trial without epochs, of the second study; what a database holds is compared below."""
    spec = {"tags": {"team": "red", "model": "of our own"}}
    writer.start("c0de", spec, versions={"torch": "2"})
    upstream = writer.open("ce", row=False)
    facts = {"dataset": "digits", "model": "convnet", "protocol": "short", "setting": "5e77"}
    rule = {"objective": "val_ece", "accuracy_tolerance": 0.5}
    study = writer.open(
        "ce+ts", trials=3, upstream=upstream, rule=rule, origin={"seeds": [0]}, **facts
    )
    bins = {"bins": 3, "lr": 0.5, "on": True, "widths": [8, 4], "warm": {"steps": {"up": "x"}}}
    configuration = {"ts": bins, "ce": {}}  # What has no parameter is no parameter.
    params = {"ts.bins": "3", "ts.lr": "0.5", "ts.on": "true", "ts.widths": "[8, 4]"}
    params["ts.warm.steps.up"] = "x"
    key = writer.begin(study, 7, configuration=configuration)
    ended = {"status": "finished", "metrics": {"val_ece": 0.25}, "artifact": "a0"}
    writer.write("trial_finished", key=key, seconds=1.5, reused=True, **ended)
    writer.score(key, 0.5)
    writer.close(study, key, finished=1)
    told = {"predictions": "p0", "default_predictions": "d0", "computed": {"train": {"cpus": 2}}}
    writer.evaluate(key, study, facts={**told, "seconds": 2.5}, test_ece=0.125)
    assert sync(writer.path, f"folder:{tmp_path}/tracked").refused == []
    runs = by_key(runs_in(tmp_path))
    both = {"sweep": writer.sweep, "sweep_id": "5eed", "study": study, "task": TASK}
    both |= {"recipe": "ce+ts", "git_commit": "c0de", "fingerprint": "f1", "reason": ""}
    ours = {"kind": "study", "key": study, "number": "1", "row": "true", "trials": "3"}
    ours |= {"upstream": upstream, **facts, "origin": '{"seeds": [0]}', "chosen": key}
    ours |= {"rule.objective": "val_ece", "rule.accuracy_tolerance": "0.5", "version.torch": "2"}
    both["configuration"] = json.dumps(configuration)
    its = {"kind": "trial", "key": key, "number": "7", "role": "search", "seed": "0"}
    its |= {"stage": "train", "reused": "true"}
    its |= {"artifact": "a0", "chosen": "true", "best_of": study, "evaluated": "true"}
    its |= {"predictions": "p0", "default_predictions": "d0", "computed": '{"train": {"cpus": 2}}'}
    plain = {"task": TASK, "recipe": "ce+ts", "dataset": "digits", "protocol": "short"}
    plain |= {"team": "red", "model": "of our own"}
    start = 1_800_000_000_000
    assert runs[study] == {
        "name": f"ce+ts on {TASK}",
        "parent": None,
        "status": "FINISHED",
        "started": start + 20,
        "ended": start + 60,
        "tags": plain | {f"calsweep.{tag}": text for tag, text in (both | ours).items()},
        "params": params,
        "metrics": {
            "trials_finished": [[1, start + 20, 0.0], [2, start + 40, 1.0]],
            "trials_failed": [[1, start + 20, 0.0], [2, start + 40, 0.0]],
            "chosen_objective": [[1, start + 60, 0.5], [2, start + 70, 0.5]],
            "test_seeds": [[1, start + 60, 0.0], [2, start + 70, 1.0]],
            "test_ece": [[2, start + 70, 0.125]],
        },
    }
    assert runs[key] == {
        "name": "ce+ts #7",
        "parent": study,
        "status": "FINISHED",
        "started": start + 30,
        "ended": start + 40,
        "tags": {**plain, "seed": "0", "stage": "train"}
        | {f"calsweep.{tag}": text for tag, text in (both | its).items()},
        "params": params,
        "metrics": {
            "trial_number": [[0, start + 30, 7.0]],
            "val_ece": [[0, start + 40, 0.25]],
            "seconds": [[0, start + 40, 1.5]],
            "objective": [[0, start + 50, 0.5]],
            "test_ece": [[0, start + 70, 0.125]],
            "chain_seconds": [[0, start + 70, 2.5]],
        },
    }


def test_a_database_has_the_same_facts_as_a_folder(writer, store, tmp_path, snapshot):
    small_sweep(writer, tmp_path)
    writer.start("1a7e")
    writer.begin(writer.open("mbls", trials=3), 3)
    for uri in (store, f"folder:{tmp_path}/tracked"):
        sync(writer.path, uri, tmp_path / "files")
    plain = runs_in(tmp_path)
    kept = runs_by_id(snapshot(store, writer.sweep))
    assert len(kept) == 6
    assert by_key(kept) == by_key(plain)


def runs_in(folder):
    return {path.stem: json.loads(path.read_text()) for path in folder.rglob("runs/*.json")}


def runs_by_id(tables):
    """Return the runs of a SQLite store as a folder's files tell them."""
    kept = {}
    for run_id, name, status, started, ended in tables["runs"]:
        own = {
            table: [row[1:] for row in rows if row[0] == run_id] for table, rows in tables.items()
        }
        points, tags = {}, dict(own["tags"])
        for metric, value, moment, step in own["metrics"]:
            points.setdefault(metric, []).append([step, moment, value])
        assert tags.pop("mlflow.runName") == name
        kept[run_id] = {
            "name": name,
            "parent": tags.pop("mlflow.parentRunId", None),
            "status": status,
            "started": started,
            "ended": ended,
            "tags": {tag: value for tag, value in tags.items() if not tag.startswith("mlflow.")},
            "params": dict(own["params"]),
            "metrics": {metric: sorted(found) for metric, found in points.items()},
        }
    return kept


def by_key(runs):
    """Return the runs by their keys, each with its parent's in place of the parent's id."""
    keys = {run_id: run["tags"]["calsweep.key"] for run_id, run in runs.items()}
    return {
        keys[run_id]: {**run, "parent": keys.get(run["parent"])} for run_id, run in runs.items()
    }


@pytest.mark.parametrize("given", [True, False])
def test_artifacts_are_under_the_root_with_their_names(writer, store, tmp_path, given):
    _, good, *_ = small_sweep(writer, tmp_path)
    root = tmp_path / "the root" if given else writer.path.with_name("artifacts")
    sync(writer.path, store, artifact_root=root if given else None)
    run = runs_of(store, writer.sweep)[good]
    client = MlflowClient(store)
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["reliability.png"]
    (place,) = root.iterdir()
    stored = place / run.info.run_id / "artifacts" / "reliability.png"
    assert stored.read_bytes() == b"png"
    sync(writer.path, store, artifact_root=tmp_path / "another")  # Not beside the database.
    assert client.get_experiment(run.info.experiment_id).artifact_location == place.as_uri()


@pytest.mark.parametrize("within", ["", "sweeps/s"])
def test_a_copy_of_a_storage_delivers_its_own_files(journal_writer, tmp_path, within):
    """Also where the storage lies in a folder that is called as the sweep's own."""
    old, new = tmp_path / within / "old", tmp_path / within / "new"
    writer = journal_writer(old / "sweeps" / "s", "s")
    writer.start()
    study = writer.open("ce")
    picture = writer.picture("inside.png")
    files = {picture.name: str(picture)}
    writer.evaluate(writer.trial(study, 0, 0.5), study, artifacts=files)
    shutil.copytree(old, new)
    (new / "sweeps" / "s" / "chosen" / "inside.png").write_bytes(b"the copy's")
    assert sync(new / "sweeps" / "s" / "journal.jsonl", f"folder:{tmp_path}/tracked").refused == []
    found = {path.name: path.read_bytes() for path in (tmp_path / "tracked").rglob("*.png")}
    assert found == {"inside.png": b"the copy's"}


def test_files_outside_the_folder_of_a_sweep_are_not_delivered(journal_writer, tmp_path):
    """A journal that somebody else changed must not send a user's private files."""
    folder = tmp_path / "storage" / "sweeps" / "s"
    writer, secret = journal_writer(folder, "s"), tmp_path / "id_rsa"
    secret.write_text("private")
    chosen = writer.picture("ok.png").parent
    (chosen / "link.png").symlink_to(secret)
    outside = {"absolute": secret, "link": chosen / "link.png", "up": folder / "../../../id_rsa"}
    writer.start()
    study = writer.open("ce")
    files = {name: str(path) for name, path in outside.items()}
    trial = writer.trial(study, 0, 0.5)
    writer.evaluate(trial, study, artifacts={**files, "ok.png": str(chosen / "ok.png")})
    fault = f"{secret} is not delivered: it is outside {chosen}"
    refused = sync(writer.path, f"folder:{tmp_path}/tracked").refused
    assert refused == [f"{trial}: artifact {name}: {fault}" for name in outside]
    found = [path.name for path in (tmp_path / "tracked").rglob("files/*/*") if path.is_file()]
    assert found == ["ok.png"]


def test_nothing_refers_to_the_old_place_of_a_moved_storage(journal_writer, store, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    writer = journal_writer(old / "sweeps" / "moving", "moving")
    shutil.copy(store.removeprefix("sqlite:///"), old / "mlflow.db")
    writer.start()
    study = writer.open("ce")
    keys = [writer.trial(study, number, 0.5) for number in range(2)]
    picture = writer.picture("picture.png")
    writer.evaluate(keys[0], study, test_ece=0.1, artifacts={"one.png": str(picture)})
    sync(writer.path, f"sqlite:///{old}/mlflow.db", old / "mlflow-artifacts")
    writer.evaluate(keys[1], study, test_ece=0.1, artifacts={"other.png": str(picture)})
    old.rename(new)
    # MLflow remembers, for the life of a process, where the files of a run lie.
    mlflow.tracking._tracking_service.utils._artifact_repos_cache.clear()
    journal, place = new / "sweeps" / "moving" / "journal.jsonl", new / "mlflow-artifacts"
    assert sync(journal, f"sqlite:///{new}/mlflow.db", place).refused == []
    delivered = sorted(path.name for path in (new / "mlflow-artifacts").rglob("*.png"))
    assert delivered == ["one.png", "other.png"]
    assert not old.exists()


def test_delivering_again_changes_nothing_even_without_memory(writer, tmp_path, caplog):
    small_sweep(writer, tmp_path)
    store = f"folder:{tmp_path}/tracked"
    sync(writer.path, store)
    before = runs_in(tmp_path)
    assert len(before) == 5
    assert sync(writer.path, store).events == 0
    writer.path.with_name("shipped.json").unlink()
    assert sync(writer.path, store).events == 21
    memory = writer.path.with_name("shipped.json")
    memory.write_text('{"offset": 3')
    assert sync(writer.path, store).events == 21
    memory.unlink()
    memory.mkdir()  # It can neither be read nor written.
    assert sync(writer.path, store).events == 21
    assert "cannot be written" in caplog.text
    assert runs_in(tmp_path) == before


def test_a_restart_continues_the_delivery(writer, tmp_path):
    small_sweep(writer, tmp_path)
    store = f"folder:{tmp_path}/tracked"
    lines = writer.path.read_bytes().splitlines(keepends=True)
    other = tmp_path / "pieces" / "journal.jsonl"
    other.parent.mkdir()
    other.write_bytes(b"".join(lines[:12]))
    assert sync(other, store).events == 12
    other.write_bytes(b"".join(lines))
    assert sync(other, store).events == len(lines) - 12
    other.write_bytes(b"".join(lines[:1] + lines[3:]))
    assert sync(other, store).events == len(lines) - 2


def test_events_after_a_cut_of_the_journal_are_all_delivered(writer, store):
    writer.start()
    study = writer.open("mbls", trials=3)
    begun = writer.path.stat().st_size
    writer.trial(study, 0, 0.25)
    sync(writer.path, store)
    os.truncate(writer.path, begun)  # As the message about a damaged line tells people to.
    # The first line of what is new is as long as the one in whose place it stands.
    others = [writer.trial(study, number, objective) for number, objective in ((1, 0.75), (2, 0.5))]
    sync(writer.path, store)
    runs = runs_of(store, writer.sweep)
    for number, key in enumerate(others, 1):
        assert runs[key].data.params == {"mbls.margin": f"{number}.5"}
        assert runs[key].data.metrics.keys() >= {"train_loss", "val_acc", "objective"}


def test_the_memory_of_another_sweep_is_ignored(writer, tmp_path):
    small_sweep(writer, tmp_path)
    store = f"folder:{tmp_path}/tracked"
    sync(writer.path, store)
    events = read_events(writer.path)[0]
    events[0].sweep_id = events[0].sweep_id[::-1]
    writer.path.write_bytes(b"".join(map(to_line, events)))
    assert sync(writer.path, store).events == len(events)


def test_a_trial_costs_three_requests(writer, store, monkeypatch):
    writer.start()
    study = writer.open("ce", trials=3)
    for number in range(3):
        writer.trial(study, number, 0.1)
    calls = []
    for name in dir(MlflowClient):
        if not name.startswith("_") and callable(getattr(MlflowClient, name)):
            real = getattr(MlflowClient, name)

            def counted(*args, _real=real, _name=name, **options):
                calls.append(_name)
                return _real(*args, **options)

            monkeypatch.setattr(MlflowClient, name, counted)
    sync(writer.path, store)
    assert calls.count("create_run") == 4
    assert calls.count("log_batch") == 4
    assert calls.count("set_terminated") == 3
    assert not {"update_run", "search_runs"} & set(calls)
    assert len(calls) <= 3 * 4 + 3


def test_more_than_a_batch_holds_is_delivered_in_several(writer, store, rows):
    writer.start()
    study = writer.open("ce")
    configuration = {"ce": {f"p{i}": i for i in range(250)}}
    key = writer.begin(study, 0, configuration=configuration)
    for step in range(30):
        metrics = {f"val_{i}": step + i / 100 for i in range(80)}
        writer.write("epoch", key=key, step=step, metrics=metrics)
    writer.end()
    assert sync(writer.path, store).refused == []
    run = runs_of(store, writer.sweep)[key]
    assert len(run.data.params) == 250
    count = "SELECT count(*) FROM metrics WHERE run_uuid = ?"
    assert rows(store, count, run.info.run_id) == [(30 * 80 + 1,)]


def test_a_journal_without_events_has_nothing_to_deliver_or_to_end(writer, store):
    shipment = sync(writer.path, store, interrupted=True)
    assert (shipment.events, shipment.runs, shipment.refused) == (0, 0, [])


def test_a_study_shows_the_figures_of_its_last_choice(writer, store, monkeypatch):
    for recipe, objectives in (("mbls", (0.2, 0.1)), ("ce", (0.01,))):
        writer.start()
        study = writer.open(recipe)
        for number, objective in enumerate(objectives):
            configuration = {recipe: {"margin": 6.0 + number}}
            key = writer.trial(study, number, objective, configuration=configuration)
            writer.close(study, key)
            writer.evaluate(key, study, test_ece=objective / 2, test_acc=0.9)
            sync(writer.path, store)
            study = writer.open(recipe)
        writer.close(study, key)
    assert sync(writer.path, store).refused == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    where = f"tags.`calsweep.recipe` = 'mbls' AND tags.`calsweep.task` = '{TASK}'"
    where += " AND metrics.test_seeds > 0"
    asked = {"experiment_names": [writer.sweep], "order_by": ["metrics.chosen_objective"]}
    best = mlflow.search_runs(filter_string=where, **asked).iloc[0]
    assert (best["metrics.test_ece"], best["metrics.chosen_objective"]) == (0.05, 0.1)
    assert json.loads(best["tags.calsweep.configuration"]) == {"mbls": {"margin": 7.0}}
    assert best["params.mbls.margin"] == "6.0"  # What MLflow was told first.


def test_new_values_win_although_the_clock_was_set_back(writer, store):
    writer.start()
    study = writer.open("ce")
    key = writer.begin(study, 0)
    writer.score(key, 0.9)
    writer.clock = iter(range(1_700_000_000_000, 1_700_000_000_010))
    writer.score(key, 0.1)
    sync(writer.path, store)
    assert runs_of(store, writer.sweep)[key].data.metrics["objective"] == 0.1


def test_refused_changes_are_named_and_stop_nothing(writer, store, tmp_path, caplog):
    writer.start()
    study = writer.open("ce")
    gone = writer.begin(study, 0)
    sync(writer.path, store)
    MlflowClient(store).delete_run(runs_of(store, writer.sweep)[gone].info.run_id)
    writer.epochs(gone, 1)
    other = writer.trial(study, 1, 0.1)
    folder = writer.picture("there.png").parent
    pictures = {name: str(folder / name) for name in ("no.png", "there.png")}
    writer.evaluate(other, study, test_ece=0.1, artifacts=pictures)
    shipment = sync(writer.path, store)
    of_the_run, of_the_file = shipment.refused
    assert of_the_run.startswith(f"{gone}: ")
    assert "'active' state" in of_the_run
    assert of_the_file == f"{other}: artifact no.png: {folder}/no.png does not exist"
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == [f"refused for good: {line}" for line in shipment.refused]
    run = runs_of(store, writer.sweep)[other]
    assert (run.info.status, run.data.metrics["test_ece"]) == ("FINISHED", 0.1)
    stored = MlflowClient(store).list_artifacts(run.info.run_id)
    assert [file.path for file in stored] == ["there.png"]
    assert sync(writer.path, store).events == 0


def test_names_that_a_server_would_refuse_are_changed(writer, store):
    writer.start()
    study = writer.open("a+b")
    key = writer.begin(study, 0, configuration={"a+b": {"µ": 1, "x" * 300: 2}})
    writer.write("epoch", key=key, step=0, metrics={"val?ece!": 0.5})
    writer.finish(key, "failed", reason="x" * 8000 + "cut off")
    writer.close(study, None, reason="y" * 8000 + "cut off")
    assert sync(writer.path, store).refused == []
    runs = runs_of(store, writer.sweep)
    reasons = [runs[name].data.tags["calsweep.reason"] for name in (key, study)]
    assert reasons == ["x" * 8000, "y" * 8000]
    run = runs[key]
    assert run.data.params == {"a_b.µ": "1", "a_b." + "x" * 246: "2"}
    assert run.data.metrics["val_ece_"] == 0.5


def test_a_journal_of_two_sweeps_or_without_a_start_is_refused(writer, store):
    writer.write("sweep_ended", status="finished")
    with pytest.raises(InputError) as refusal:
        sync(writer.path, store)
    assert str(refusal.value) == f"journal {writer.path}, line 1: not the start of a sweep"
    writer.path.write_bytes(b"")
    writer.start()
    writer.sweep_id = "0ther"
    writer.start()
    with pytest.raises(InputError, match="5eed contains another sweep, 0ther"):
        sync(writer.path, store)


def test_a_tracker_at_another_path_gets_every_event_again(writer, tmp_path):
    small_sweep(writer, tmp_path)
    sync(writer.path, f"folder:{tmp_path}/tracked")
    (tmp_path / "linked").symlink_to(tmp_path / "tracked")
    assert sync(writer.path, f"folder:{tmp_path}/linked").events == 21
    assert len(runs_in(tmp_path / "tracked")) == 5


def test_a_creation_that_takes_effect_late_leaves_one_run(writer, monkeypatch, tmp_path):
    small_sweep(writer, tmp_path)
    real, late = FolderTracker.create_run, []

    def delayed(self, *args):
        if not late:
            late.append((self, *args))
            raise UnreachableError("timed out")
        run = real(self, *args)
        if len(late) == 1:
            late.append(real(*late[0]))
        return run

    monkeypatch.setattr(FolderTracker, "create_run", delayed)
    sync(writer.path, f"folder:{tmp_path}/tracked")
    assert len(runs_in(tmp_path)) == 5
    assert late[1] not in runs_in(tmp_path)


def test_an_experiment_deleted_on_the_server_is_named_with_the_remedy(writer, store, monkeypatch):
    monkeypatch.setattr("orchestrator.tracking._shipper.time.sleep", lambda _: pytest.fail("waits"))
    writer.start()
    writer.open("ce")
    sync(writer.path, store)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name(writer.sweep).experiment_id
    client.delete_experiment(experiment)
    with pytest.raises(InputError) as refusal:
        sync(writer.path, store)
    assert str(refusal.value) == (
        f"experiment {writer.sweep!r} is deleted; restore it with "
        f"`MLFLOW_TRACKING_URI={store} mlflow experiments restore -x {experiment}`"
    )
    with pytest.raises(InputError) as unknown:
        study_results(store, writer.sweep)
    assert str(unknown.value) == str(refusal.value)
    shipper = ShipperProcess(["true"], store, writer.path)
    assert shipper.fault() is None  # It was of an earlier shipper.
    with pytest.raises(InputError):
        sync(writer.path, store)
    assert shipper.fault() == Fault(str(refusal.value), lasting=True)
    shipper.process.wait()


def test_a_fault_of_the_tracker_is_remembered_until_a_delivery_succeeds(writer, store, monkeypatch):
    writer.start()
    shipper, opened = _shipper._Shipper(writer.path, store, writer.path.parent), open_tracker

    def away(*_: object, **__: object) -> Tracker:
        raise UnreachableError("away")

    process = ShipperProcess(["true"], store, writer.path)
    monkeypatch.setattr(_shipper, "open_tracker", away)
    with pytest.raises(UnreachableError):
        shipper.step()
    assert process.fault() == Fault("away", lasting=False)
    monkeypatch.setattr(_shipper, "open_tracker", opened)
    shipper.step()
    assert process.fault() is None
    process.process.wait()


def test_only_one_process_ships_a_journal(writer, store, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr("orchestrator.tracking._shipper.LOCK_WAIT", 0.1)
    writer.start()
    with FileLock(writer.path.with_name("shipped.lock")), pytest.raises(InputError) as refusal:
        sync(writer.path, store)
    told = "is being delivered by another process, such as its running sweep"
    assert str(refusal.value) == f"journal {writer.path} {told}"


@pytest.mark.parametrize(("follows", "longest"), [(False, _shipper.LOCK_WAIT), (True, -1)])
def test_a_following_shipper_waits_for_another_one_without_limit(
    writer, tmp_path, monkeypatch, follows, longest
):
    asked = []

    def lock(path, **_: object):
        asked.append(path)
        return SimpleNamespace(acquire=lambda timeout: nullcontext(asked.append(timeout)))

    monkeypatch.setattr(_shipper, "FileLock", lock)
    writer.start()
    writer.end()
    parent = os.getpid() if follows else None
    sync(writer.path, f"folder:{tmp_path}/tracked", parent_pid=parent)
    assert asked == [writer.path.with_name("shipped.lock"), longest]


@pytest.mark.parametrize("later", ["false", "true"])
def test_changes_of_a_run_that_is_gone_are_refused_not_repeated(store, monkeypatch, later):
    """Even where MLflow is told to log later, which nobody would see fail."""
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", later)
    with pytest.raises(RefusedError):
        MlflowTracker(store).log("0" * 32, Change("k", tags={"a": "b"}))


def clock(sleep, monotonic=time.monotonic):
    return SimpleNamespace(sleep=sleep, monotonic=monotonic, time_ns=time.time_ns)


def wait_for(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_the_shipper_follows_a_sweep_and_ends_with_it(writer, tmp_path):
    writer.clock = itertools.count(time.time_ns() // 1_000_000 + 3_600_000)
    writer.start()
    writer.end("interrupted")  # The end of an earlier attempt does not end it.
    writer.start()
    uri = f"sqlite:///{place_database(tmp_path)}/mlflow.db"
    shipper = start_shipper(writer.path, uri, tmp_path, poll_seconds=0.1)
    wait_for(lambda: shipper.progress()[0] == writer.path.stat().st_size)
    writer.clock = itertools.count(1_700_000_000_000)  # The machine's clock is set back.
    study = writer.open("ce")
    key = writer.begin(study, 0)
    writer.epochs(key, 1)
    wait_for(lambda: shipper.progress()[0] == writer.path.stat().st_size)

    def runs():
        found = tracker.runs(RunQuery([tracker.sweeps()[writer.sweep]], {}))
        return {run.tags["calsweep.key"]: run for run in found}

    tracker = open_tracker(uri)
    assert runs()[key].metrics["val_ece"] == 0.5
    assert shipper.process.poll() is None
    assert os.getpriority(os.PRIO_PROCESS, shipper.process.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    writer.finish(key)
    writer.close(study, key, finished=1)
    writer.end()
    assert shipper.wait_drained(600)
    assert shipper.process.poll() is not None
    assert not shipper.revive()
    assert shipper.progress() == (writer.path.stat().st_size, writer.path.stat().st_size)
    assert {run.status for run in runs().values()} == {"FINISHED"}
    assert "runs delivered" in shipper.log.read_text()


@pytest.mark.full
def test_a_shipper_whose_parent_died_delivers_the_rest_and_closes_open_runs(writer, tmp_path):
    writer.start()
    study = writer.open("ce")
    key = writer.begin(study, 0)
    uri = f"sqlite:///{place_database(tmp_path)}/mlflow.db"
    program = (
        "import sys, time\n"
        "from orchestrator.tracking import start_shipper\n"
        "shipper = start_shipper(sys.argv[1], sys.argv[2], '.', poll_seconds=0.1)\n"
        "print(shipper.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(writer.path), uri], stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    wait_for(lambda: writer.path.with_name("shipped.json").exists())
    writer.epochs(key, 2)
    parent.kill()
    parent.wait()  # What is done about one that nobody reaps is asked below, without waiting.
    wait_for(lambda: not os.path.exists(f"/proc/{pid}") or is_zombie(pid))
    parent.stdout.close()
    tracker = open_tracker(uri)
    found = tracker.runs(RunQuery([tracker.sweeps()[writer.sweep]], {}))
    runs = {run.tags["calsweep.key"]: run for run in found}
    assert runs[key].metrics["train_loss"] == 0.5
    assert {runs[key].status, runs[study].status} == {"KILLED"}


def is_zombie(pid):
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.full
def test_an_incomplete_database_is_created_again(tmp_path):
    """Made while files of this process may not grow, as on a full disk, and when they may."""
    for left in (".mlflow.db.killed.tmp", ".mlflow.db.killed.tmp-journal", ".other.db.new.tmp"):
        (tmp_path / left).touch()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(UnreachableError):
            MlflowTracker(f"sqlite:///{tmp_path}/mlflow.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    tracker = MlflowTracker(f"sqlite:///{tmp_path}/mlflow.db")
    assert (tracker.sweeps(), tracker.lanes) == ({}, 1)
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == [".other.db.new.tmp", "mlflow.db", "mlflow.db.lock"]  # One may be made now.


def test_mlflow_is_quiet_repeats_nothing_and_waits_for_a_minute():
    settings = {"DISABLE_TELEMETRY": "true", "SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
    settings |= {"HTTP_REQUEST_MAX_RETRIES": "0", "HTTP_REQUEST_TIMEOUT": "60"}
    assert {name: os.environ[f"MLFLOW_{name}"] for name in settings} == settings


def test_during_an_outage_it_outlives_its_parent_by_a_limited_time(writer, monkeypatch):
    writer.start()
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    waits, alone = [], []

    def sleep(seconds):
        (waits if parent.poll() is None else alone).append(seconds)
        if sum(waits) > 2 * _shipper.PATIENCE_ORPHANED and not alone:
            parent.kill()
            parent.wait()
        assert sum(alone) < 1e6, "it never ends"

    def away(*_, **options):
        raise UnreachableError("connection refused")

    monkeypatch.setattr(_shipper, "time", clock(sleep, lambda: sum(waits) + sum(alone)))
    monkeypatch.setattr(_shipper, "open_tracker", away)
    with parent.stdin, pytest.raises(UnreachableError):
        sync(writer.path, "http://127.0.0.1:5000", parent_pid=parent.pid)
    assert waits[:6] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    most = _shipper.PATIENCE_ORPHANED
    assert most - _shipper.LONGEST_PAUSE <= sum(alone) <= most


@pytest.fixture
def dead_parent():
    """Return the id of a process that has ended and is not reaped before the test ends."""
    parent = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    parent.stdout.read()
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    yield parent.pid
    parent.communicate()


@pytest.fixture
def waits(monkeypatch):
    """Return the seconds, on their own clock, for which a tracker that is away is waited for."""
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        assert len(waited) < 1000, "it never ends"

    monkeypatch.setattr(_shipper, "time", clock(sleep, lambda: sum(waited)))

    def away(*_, **options):
        raise UnreachableError("connection refused")

    monkeypatch.setattr(_shipper, "open_tracker", away)
    return waited


def test_an_orphaned_shipper_waits_for_a_minute(writer, waits, dead_parent):
    writer.start()
    with pytest.raises(UnreachableError):
        sync(writer.path, "http://127.0.0.1:5000", parent_pid=dead_parent)
    assert waits[:5] == [0.5, 1.0, 2.0, 4.0, 5.0]
    assert 55 <= sum(waits) <= 60


def test_a_single_delivery_waits_for_seconds(writer, waits, caplog):
    writer.start()
    with pytest.raises(UnreachableError):
        sync(writer.path, "http://127.0.0.1:5000")
    assert waits == [0.5, 1.0, 2.0]
    told = [f"connection refused; trying again in {pause} s" for pause in waits]
    assert [record.getMessage() for record in caplog.records] == told


def test_after_an_outage_of_ten_minutes_everything_is_delivered(writer, monkeypatch, tmp_path):
    waited, opened, outage = list[float](), _shipper.open_tracker, 600

    def open_tracker(*given, **options):
        if sum(waited) < outage:
            raise UnreachableError("connection refused")
        return opened(*given, **options)

    monkeypatch.setattr(_shipper, "time", clock(waited.append, lambda: sum(waited)))
    monkeypatch.setattr(_shipper, "open_tracker", open_tracker)
    writer.start()
    study = writer.open("ce")
    writer.close(study, writer.trial(study, 0, 0.5))
    writer.end()
    uri = f"folder:{tmp_path}/tracked"
    runs = sync(writer.path, uri, parent_pid=os.getpid()).runs
    assert outage <= sum(waited) < outage + 10
    assert runs == 2  # Of the study and the trial.


@pytest.mark.parametrize("deliver", [sync, start_shipper])
def test_an_address_that_cannot_be_used_is_refused_at_once(writer, deliver):
    with pytest.raises(InputError, match="'mlruns' is not supported"):
        deliver(writer.path, "mlruns", "files")


@pytest.mark.parametrize(("given", "seconds"), [({"poll_seconds": 0.25}, 0.25), ({}, 1.0)])
def test_the_journal_is_polled_at_the_given_interval(writer, tmp_path, monkeypatch, given, seconds):
    slept, steps = [], [writer.start, lambda: writer.open("ce"), writer.end]

    def sleep(seconds):
        slept.append(seconds)
        steps.pop(0)()

    monkeypatch.setattr(_shipper, "time", clock(sleep))
    uri, parent = f"folder:{tmp_path}/tracked", os.getpid()
    told = sync(writer.path, uri, parent_pid=parent, **given)
    assert (slept, told) == ([seconds] * 3, Shipment(events=3, runs=1))


def test_a_parent_that_died_before_is_noticed(writer, tmp_path):
    writer.start()
    study = writer.open("ce")
    parent = subprocess.Popen([sys.executable, "-c", ""])
    parent.wait()
    uri = f"folder:{tmp_path}/tracked"
    assert sync(writer.path, uri, parent_pid=parent.pid).runs == 1
    (run,) = open_tracker(uri).runs(RunQuery([writer.sweep], {}))
    assert (run.tags["calsweep.key"], run.status) == (study, "KILLED")


def test_the_process_gets_all_options(writer, tmp_path, monkeypatch, caplog):
    started, asked, nice = [], [], []
    caplog.set_level("INFO")
    monkeypatch.chdir(writer.path.parent)  # The process may have another folder.
    log = writer.path.with_name("shipper.log")
    log.write_text("of an earlier run")

    def start(command, **options):
        started.append((command, options))

    process = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr("orchestrator.tracking._process.subprocess", process)
    uri = f"folder:{tmp_path}/tracked"
    shipper = start_shipper(writer.path.name, uri, "root", poll_seconds=0.25)
    ((command, options),) = started
    assert (shipper.log, log.read_text()) == (log, "of an earlier run")
    assert command[:3] == [sys.executable, "-m", "orchestrator.tracking"]
    assert (options["stdin"], options["start_new_session"]) == (subprocess.DEVNULL, True)
    assert options["env"] == {**os.environ, URI_VARIABLE: uri}
    assert options["stdout"].name == options["stderr"].name == str(shipper.log)

    def answer(**options):
        asked.append(options)
        if len(asked) > 1:
            raise InputError("refused")
        return Shipment(events=21, runs=5)

    monkeypatch.setattr(_shipper, "sync", answer)
    monkeypatch.setattr(program, "_log_without_secrets", lambda uri: None)
    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(os, "environ", options["env"])
    monkeypatch.setattr(sys, "argv", command[2:])
    assert [program.main(), program.main()] == [0, 1]
    assert nice == [program.NICENESS] * 2  # The sweep's own processes come first.
    said = [record.getMessage() for record in caplog.records]
    assert said == ["21 events in 5 runs delivered", "refused"]
    told, _ = asked
    expected = {"journal": str(writer.path), "artifact_root": str(writer.path.parent / "root")}
    assert told == expected | {"uri": uri, "parent_pid": os.getpid(), "poll_seconds": 0.25}


def test_a_shipper_that_is_not_done_in_time_says_so(writer, tmp_path):
    writer.start()
    shipper = start_shipper(writer.path, f"sqlite:///{tmp_path}/tracked.db", tmp_path)
    assert not shipper.wait_drained(0.2)
    shipper.stop()
    assert shipper.process.poll() is not None


@pytest.mark.parametrize(
    ("codes", "drained", "starts"),
    [
        ([0], True, 1),
        ([1, 0], True, 2),
        ([1, -9, 1, 0], True, 4),
        ([1, 1, 1, 1, 0], False, 4),
        ([None, None, 0], True, 1),
        ([None, 1, None, 0], True, 2),
        ([None, None, None, None, None, 0], False, 1),
        ([1, None, None, None, None, None, 0], False, 2),
    ],
)
def test_a_failed_shipper_is_restarted_a_few_times(tmp_path, monkeypatch, codes, drained, starts):
    """Each code is what waiting half a second for it gives; None if it is still at work then."""
    started, clock, left = [], [0.0], iter(codes)

    class Process:
        code = None

        def __init__(self, command, **options):
            started.append(command)

        def poll(self):
            return self.code

        def wait(self, timeout):
            self.code = next(left)
            clock[0] += timeout
            if self.code is None:
                raise subprocess.TimeoutExpired("shipper", timeout)
            return self.code

    kinds = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    where = "orchestrator.tracking._process"
    monkeypatch.setattr(f"{where}.subprocess", SimpleNamespace(Popen=Process, **kinds))
    journal = tmp_path / "to" / "come" / "journal.jsonl"
    shipper = start_shipper(journal, f"folder:{tmp_path}/tracked", tmp_path)
    assert json.loads(started[0][-1])["poll_seconds"] == 1.0
    monkeypatch.setattr(f"{where}.time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert not shipper.revive()
    assert shipper.wait_drained(2.5) == drained
    assert len(started) == starts
    assert started == started[:1] * starts
    dead = shipper.process.poll() not in (None, 0)
    assert shipper.revive() == dead
