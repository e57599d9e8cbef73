"""The store that the benchmark fills in bulk is what the shipper would have made of the journal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.storage.journal import Journal
from orchestrator.tracking import best_trials, study_results, sync

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def bulk(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCHMARKS)])
    import _tracking_store

    return _tracking_store


def named(tables):
    """Return a store's rows with every run called by its key, without where its artifacts lie."""
    keys = {run: value for run, name, value in tables["tags"] if name == "calsweep.key"}
    return {
        table: sorted([tuple(keys.get(cell, cell) for cell in row) for row in rows], key=str)
        for table, rows in tables.items()
    }


def test_both_ways_fill_the_same_rows(bulk, tmp_path, store, snapshot, request):
    shipped, filled = f"{request.node.name}-shipped", f"{request.node.name}-filled"
    with Journal(tmp_path / "journal.jsonl") as journal:
        for event in bulk.sweep_events(shipped, 60, seed=7, code="c0de"):
            journal.append(event, durable=False)
    sync(journal.path, store)
    assert bulk.fill(store, filled, bulk.sweep_events(shipped, 60, seed=7, code="c0de")) == 60
    ours, theirs = named(snapshot(store, filled)), named(snapshot(store, shipped))
    assert {table: len(rows) for table, rows in ours.items()} == {
        "runs": 60,
        "metrics": len(theirs["metrics"]),
        "params": 60 * 20,  # A study has those of its choice.
        "tags": len(theirs["tags"]),
    }
    ended = [row[:3] for row in ours.pop("runs")]
    assert ended == [row[:3] for row in theirs.pop("runs")]
    # The study's counts are points of the moment that batches decide; their last values agree.
    assert ours["params"] == theirs["params"]
    assert ours["tags"] == theirs["tags"]
    assert ours["metrics"] == theirs["metrics"]
    task, recipe = bulk.TASKS[0], "mbls"
    left, right = (best_trials(store, task, recipe, sweep)[0] for sweep in (shipped, filled))
    assert (left.trial.objective, left.trial.configuration) == (
        right.trial.objective,
        right.trial.configuration,
    )
    assert [r.test for r in study_results(store, shipped)] == [
        r.test for r in study_results(store, filled)
    ]
