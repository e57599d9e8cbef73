"""Which studies are ranked together, and that the quick way finds what the slow way finds."""

from __future__ import annotations

import pytest

from orchestrator.storage.ledger import Study
from orchestrator.tracking import Where, best_trials, open_tracker, sync
from orchestrator.tracking.tracker import RunQuery
from trainables.common.errors import InputError

RULE = {"objective": "val_ece", "accuracy_tolerance": 0.01, "epoch": "last", "tie": "earlier trial"}
FACTS = {"model": "convnet", "protocol": "p", "setting": "s1", "fingerprint": "f1", "rule": RULE}
DAY = 86_400_000


@pytest.fixture
def store(either_store):
    return either_store


@pytest.fixture
def sweeps(writer, store, tmp_path, request):
    """Return a function that runs a sweep of one study and delivers it."""
    made = []

    def run(objectives, code="c0de", tags=None, day=0, closed=True, failed=0, **facts):
        number = len(made)
        made.append(sweep := type(writer)(tmp_path / str(number), f"{writer.sweep}-{number}"))
        sweep.sweep_id = f"{request.node.name}-{number}"
        sweep.clock = iter(range(1_800_000_000_000 + day * DAY, 1_900_000_000_000))
        provenance = {"git_commit": code, "versions": {}}
        sweep.write(
            "sweep_started",
            sweep=sweep.sweep,
            sweep_id=sweep.sweep_id,
            spec={"tags": tags or {}},
            provenance=provenance,
        )
        study = sweep.open("ce", task=writer.sweep, **{**FACTS, **facts})
        keys = [sweep.trial(study, n, value) for n, value in enumerate(objectives)]
        for number in range(failed):
            sweep.finish(sweep.begin(study, len(keys) + number), "failed", reason="nan")
        if not keys:
            sweep.end("interrupted")
        elif closed:
            best = min(range(len(keys)), key=lambda n: (objectives[n], n))
            sweep.close(study, keys[best], finished=len(keys))
            sweep.end()
        sync(sweep.path, store)
        return sweep

    return run


@pytest.fixture
def ask(store, writer):
    def best(top=1, sweep=None, **where):
        return best_trials(store, writer.sweep, "ce", sweep, top, Where(**where))

    return best


def test_the_best_of_several_sweeps_by_either_way(sweeps, ask):
    sweeps([0.5, 0.2, 0.4])
    sweeps([0.3, 0.3, 0.1], day=1)
    sweeps([0.7, 0.1], day=2)  # The same objective, but an earlier trial of its study.
    (quick,) = ask()
    slow = ask(top=4)
    assert (quick.trial.objective, quick.trial.number, quick.study.time) == (
        0.1,
        1,
        1_800_172_800_001,
    )
    assert slow[0] == quick
    assert [run.trial.objective for run in slow] == [0.1, 0.1, 0.2, 0.3]
    assert quick.study.rule == {**RULE, "accuracy_tolerance": "0.01"}


def test_a_trial_of_a_study_that_is_still_open_counts(sweeps, ask):
    sweeps([0.5, 0.2])
    running = sweeps([0.3, 0.1], day=1, closed=False)
    assert [(run.trial.objective, run.sweep) for run in ask()] == [(0.1, running.sweep)]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"fingerprint": "f2", "setting": "s2"}, "fingerprint f1, convnet by p"),
        ({"setting": "s3", "protocol": "q"}, "fingerprint f1, convnet by q"),
        ({"rule": {**RULE, "objective": "val_nll"}}, "val_nll with accuracy tolerance 0.01"),
        ({"rule": {**RULE, "accuracy_tolerance": None}}, "val_ece with accuracy tolerance null"),
    ],
)
def test_what_differs_is_not_ranked_together(sweeps, ask, change, text):
    first = sweeps([0.5])
    sweeps([0.1], day=1, **change)
    with pytest.raises(InputError, match="cannot be ranked together") as refusal:
        ask()
    assert text in str(refusal.value)
    assert first.sweep in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert [run.trial.objective for run in ask(sweep=first.sweep)] == [0.5]


@pytest.mark.parametrize("failed", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        {"setting": "s3", "protocol": "q"},
        {"rule": {**RULE, "objective": "val_nll"}},
        {"code": "b2"},
    ],
)
def test_a_study_without_a_finished_trial_does_not_count(sweeps, ask, change, failed):
    sweeps([0.5, 0.2])
    sweeps([], day=1, failed=failed, **change)
    (best,) = ask()
    assert (best.trial.objective, best.note) == (0.2, "")


def test_where_no_trial_has_finished_there_is_no_best_one(sweeps, ask):
    sweeps([])
    sweeps([], day=1, setting="s3")
    assert ask() == []


def test_other_data_are_asked_for_by_their_fingerprint(sweeps, ask):
    sweeps([0.5])
    sweeps([0.1], day=1, fingerprint="a2b3", setting="s2")
    assert [run.trial.objective for run in ask(fingerprint="f1")] == [0.5]
    assert [run.trial.objective for run in ask(fingerprint="a2")] == [0.1]
    assert [run.trial.objective for run in ask(top=5, fingerprint="any")] == [0.1, 0.5]
    with pytest.raises(InputError, match="fulfils --fingerprint bad; there are: code c0de of"):
        ask(fingerprint="bad")


def test_of_several_versions_the_latest_counts_and_the_others_are_named(sweeps, ask):
    old = sweeps([0.1], code="a1")
    sweeps([0.3], code="b2", day=1)
    sweeps([0.2], code="b2", day=2)
    (best,) = ask()
    assert (best.trial.objective, best.trial.code) == (0.2, "b2")
    assert best.note.startswith("from code b2, the latest; left out: code a1 of ")
    assert old.sweep in best.note
    assert [(run.trial.objective, run.note) for run in ask(code="a")] == [(0.1, "")]
    assert [run.trial.objective for run in ask(top=3)] == [0.2, 0.3]
    assert [run.trial.objective for run in ask(top=3, code="any")] == [0.1, 0.2, 0.3]


def test_since_includes_its_moment_and_until_does_not():
    opened = Study(index=0, study="t|ce", task="t", recipe="ce", trials=1, row=True, time=5000)
    assert Where(since=5.0).holds(opened, {})
    assert not Where(until=5.0).holds(opened, {})
    assert Where(until=5.001).holds(opened, {})


def test_studies_are_found_by_time_and_by_the_tags_of_their_sweep(sweeps, ask, store):
    sweeps([0.5], tags={"team": "red"})
    blue = sweeps([0.4], tags={"team": "blue"}, day=2)
    sweeps([0.3], day=4)
    start = 1_800_000_000.0
    assert [run.trial.objective for run in ask(tags={"team": "red"})] == [0.5]
    assert [run.trial.objective for run in ask(since=start + 86_400, until=start + 3 * 86_400)] == [
        0.4
    ]
    assert [run.trial.objective for run in ask(until=start + 86_400)] == [0.5]
    with pytest.raises(InputError, match="fulfils --tag team=green; there are: "):
        ask(tags={"team": "green"})
    tracker = open_tracker(store)
    (experiment,) = (found for name, found in tracker.sweeps().items() if name == blue.sweep)
    assert (
        len(list(tracker.runs(RunQuery([experiment], {"team": "blue"})))) == 2
    )  # The study and its trial.
