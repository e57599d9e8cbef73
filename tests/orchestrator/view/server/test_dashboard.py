"""Optuna's dashboard: what its studies hold, and the command that opens it."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request

import pytest

from orchestrator.cli import main
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger
from orchestrator.view.server import optuna_storage, serve_dashboard
from tests.orchestrator.view.conftest import TASK


@pytest.fixture(scope="module")
def ledger(source, storage):
    return Ledger(iterate_events(storage / "sweeps/night/journal.jsonl", kinds=None), ["val_ece"])


def test_studies_are_those_of_the_journal(ledger) -> None:
    storage = optuna_storage(ledger)
    found = {study.study_name: study for study in storage.get_all_studies()}
    assert list(found) == list(ledger.studies)
    name = f"{TASK}|mbls+macal"
    assert [d.name for d in found[name].directions] == ["MINIMIZE", "MAXIMIZE"]
    trials = storage.get_all_trials(found[name]._study_id)
    ours = ledger.studies[name].searched
    assert [t.state.name for t in trials[:4]] == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    assert [t.params for t in trials] == [t.parameters for t in ours]
    scored = [t for t in ours if t.status == "finished"]
    values = [t.values for t in trials if t.values]
    assert values == [[t.objective, t.metrics["val_acc"]] for t in scored]
    assert trials[0].user_attrs["key"] == ours[0].key
    assert (trials[1].duration or trials[0].duration).total_seconds() == pytest.approx(1.5)


def test_epochs_are_intermediate_values(ledger, monkeypatch) -> None:
    monkeypatch.setitem(ledger.spec["search"], "pareto", [])
    storage = optuna_storage(ledger)
    first = storage.get_all_trials(storage.get_study_id_from_name(f"{TASK}|ce"))[0]
    assert first.intermediate_values == {step: 0.1 / step for step in range(1, 5)}


def test_the_dashboard_answers_on_the_loopback(ledger) -> None:
    heard, there = [], threading.Event()

    def started(url):
        heard.append(url)
        there.set()

    threading.Thread(target=serve_dashboard, args=(ledger, 0, started), daemon=True).start()
    assert there.wait(60)
    assert heard[0].startswith("http://127.0.0.1:")
    with urllib.request.urlopen(heard[0].replace("/dashboard", "/api/studies")) as answer:
        told = json.load(answer)["study_summaries"]
    assert {study["study_name"] for study in told} == set(ledger.studies)


def test_what_is_missing_is_one_line(ledger, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with pytest.raises(Exception, match=r"^Optuna's dashboard is not installed: pip install"):
        serve_dashboard(ledger, 0, print)
    assert main(["ui", "--optuna", "none", "--storage", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("calsweep: no sweep 'none' in")
