import os
import re
import stat
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from orchestrator.storage.ledger import Study, Trial
from orchestrator.tracking import TrackedTrial, best_trials, champion, open_tracker, sync
from orchestrator.tracking.champion import promote
from trainables.common.errors import InputError
from trainables.common.paths import SYNC
from trainables.common.stages import ArtifactRef


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tracked"


def test_a_champion_has_its_provenance(tmp_path, monkeypatch):
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
    stand_ins["export_chain"].assert_called_once_with(
        store, ArtifactRef("train", "a1"), "the data", folder
    )
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
    assert told == f"{record} is damaged (HOW); delete its experiment's folder, then `{SYNC}`"
    (experiment,) = (folder / "experiments").iterdir()
    for file in experiment.rglob("*.json"):
        file.unlink()
    assert sync(writer.path, uri).events == 7
    (best,) = best_trials(uri, study.partition("|")[0], "ce")
    assert best.trial.objective == 0.25


def test_runs_and_memory_are_replaced_as_a_whole(writer, folder, tmp_path, monkeypatch):
    """A process that is killed while writing leaves the old file or the whole new one."""
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


def test_without_tracking_there_are_no_runs(folder):
    uri = open_tracker(f"folder:{folder}", create=True).uri
    asked = {"task 't'": None, "sweep 's'": "s"}
    for what, sweep in asked.items():
        with pytest.raises(InputError) as refusal:
            best_trials(uri, "t", "ce", sweep)
        assert str(refusal.value) == f"no {what} on {uri}; there are: none"
