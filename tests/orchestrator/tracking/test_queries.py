import itertools

import pytest

from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.results import results_of
from orchestrator.tracking import (
    best_trials,
    known_studies,
    open_tracker,
    study_results,
    sync,
    tracked_trial,
)
from orchestrator.tracking.tracker import RunQuery
from trainables.common.errors import InputError
from trainables.common.paths import ELSEWHERE, SYNC

TASK = "digits/convnet/digits"
CONFIGURATION = {
    "mbls": {"margin": 6.0, "hidden": 8, "on": True, "variant": "paper", "lr": 1e-05, "x": None},
    "ts": {"objective": "6.0"},
}
FACTS = {
    **{"dataset": "digits", "model": "convnet", "protocol": "digits", "setting": "5e77"},
    "fingerprint": "f2",
    "rule": {"objective": "val_ece", "accuracy_tolerance": 0.01, "tie": "earlier trial"},
    "origin": {"seeds": [1, 2, 0], "splits": {}, "split": {"train_limit": 5000}},
}


in_both = pytest.mark.parametrize("either_store", ["database", "folder"], indirect=True)


@pytest.fixture
def store(either_store):
    return either_store


@pytest.fixture
def study(writer):
    writer.start()
    return writer.open("mbls+ts")


def best(store, writer, **more):
    return best_trials(store, TASK, "mbls+ts", sweep=writer.sweep, **more)


def test_the_best_is_the_lowest_objective_and_the_earliest_of_equals(writer, study, store):
    for number, objective in enumerate([0.5, 0.2, 0.3, 0.2, 1e-3]):
        key = writer.begin(study, number)
        status = "failed" if objective < 0.1 else "finished"
        writer.finish(key, status=status, val_ece=objective)
        writer.score(key, objective)
    sync(writer.path, store)
    found = best(store, writer, top=10)
    assert [(run.trial.number, run.trial.objective) for run in found] == [
        (1, 0.2),
        (3, 0.2),
        (2, 0.3),
        (0, 0.5),
    ]
    assert [run.trial.number for run in best(store, writer)] == [1]


def test_seeds_unscored_pruned_and_other_studies_do_not_count(writer, study, store):
    writer.trial(study, 0, 0.5)
    writer.trial(study, 1, 0.1, role="seed", seed=1)
    writer.finish(writer.begin(study, 2), val_ece=0.01)
    cut = writer.begin(study, 3)
    writer.finish(cut, status="pruned")
    writer.score(cut, 0.1)
    running = writer.begin(study, 4)
    writer.score(running, 0.1)
    writer.trial(writer.open("mbls"), 0, 0.1)
    writer.trial(writer.open("mbls+ts", task="other/task/x"), 0, 0.1)
    sync(writer.path, store)
    assert [run.trial.number for run in best(store, writer, top=5)] == [0]


@in_both
def test_a_configuration_longer_than_a_tag_comes_back_whole(writer, study, store):
    long = {"mbls": {f"p{i}": "ä'\"`" + str(i) * 40 for i in range(400)}}
    writer.trial(study, 0, 0.1, configuration=long)
    assert sync(writer.path, store).refused == []
    assert best(store, writer)[0].trial.configuration == long


@in_both
def test_unknown_names_are_answered_with_known_ones(writer, study, store, tmp_path):
    writer.open("ce")
    for task in ("other/task/x", "another/task/x"):
        writer.open("ls", task=task)
    sync(writer.path, store)
    assert best(store, writer) == []
    elsewhere = f" {ELSEWHERE}" if store.startswith("sqlite") else ""
    sweeps = ", ".join(sorted(open_tracker(store).sweeps()))
    tasks = f"another/task/x, {TASK}, other/task/x"
    for names, told in (
        ((TASK, "mbls+ts", "x"), f"no sweep 'x' on {store}{elsewhere}; there are: {sweeps}"),
        (("x", "mbls+ts", writer.sweep), f"no task 'x' on {store}; there are: {tasks}"),
        (
            (TASK, "ls", writer.sweep),
            f"no recipe 'ls' for '{TASK}' on {store}; there are: ce, mbls+ts",
        ),
    ):
        with pytest.raises(InputError) as refusal:
            best_trials(store, *names)
        assert str(refusal.value) == str(InputError(told))  # Cut, if sweeps are many.
    with pytest.raises(InputError, match="no sweep 'x'"):
        study_results(store, "x")
    for top in (0, -1):
        with pytest.raises(InputError, match=rf"^top: expected 1 or more, got {top}$"):
            best_trials(store, TASK, "ce", top=top)
    missing = tmp_path / "none"
    with pytest.raises(InputError) as refusal:
        study_results(f"sqlite:///{missing}", "x")
    told = f"no tracking database at {missing} {ELSEWHERE}; `{SYNC}` builds it"
    assert str(refusal.value) == told
    assert not missing.exists()


@pytest.mark.parametrize("task", ["it's", 'a "b"', "100% _x"])
def test_names_with_marks_of_the_filter_language_are_looked_up(writer, database, task):
    writer.start()
    writer.trial(writer.open("ce", task=task), 0, 0.1)
    sync(writer.path, database)
    assert len(best_trials(database, task, "ce", sweep=writer.sweep)) == 1


def test_a_name_that_mlflow_cannot_quote_is_refused(writer, study, database, monkeypatch):
    sync(writer.path, database)
    with pytest.raises(InputError, match=r"^no task "):
        best_trials(database, 'it\'s "it"', "ce")
    monkeypatch.setattr("orchestrator.tracking._kinds.is_readable", lambda file: False)
    with pytest.raises(InputError) as refusal:
        best_trials(database, 'it\'s "it"', "ce")
    text = "'it\\'s \"it\"|ce' cannot be searched: it has both ' and \""
    assert str(refusal.value) == text


def whole_sweep(writer):
    """Write a sweep with every kind of study there is."""
    writer.start()
    base = writer.open("ce", row=False)
    writer.close(base, writer.trial(base, 0, 0.4), finished=1)
    good = writer.open("mbls+ts", trials=3, **FACTS)
    keys = [writer.trial(good, n, 0.5 - n / 10, configuration=CONFIGURATION) for n in range(2)]
    seeds = [
        writer.trial(good, seed, 0.3, role="seed", seed=seed, configuration=CONFIGURATION)
        for seed in (2, 1)
    ]
    lost = writer.begin(good, 2)
    writer.finish(lost, status="failed", reason="out of memory")
    writer.close(good, keys[1], finished=2, failed=1, reason="out of memory")
    for seed, key in enumerate([keys[1], seeds[1], seeds[0]]):
        facts = {"predictions": f"p{seed}", "default_predictions": f"d{seed}", "seconds": 10.5}
        writer.evaluate(key, good, seed=seed, test_ece=seed / 100, test_acc=0.9, facts=facts)
    bad = writer.open("acls")
    writer.finish(writer.begin(bad, 0), status="failed", reason="loss is NaN")
    writer.close(bad, None, finished=0, failed=1, reason="no trial finished: loss is NaN")
    running = writer.open("dfl")
    writer.trial(running, 0, 0.1)
    writer.begin(running, 1)


def both(writer, store):
    sync(writer.path, store)
    events, _ = read_events(writer.path)
    ours, theirs = results_of(Ledger(events)), study_results(store, writer.sweep)
    return ours, theirs


def without_runs(results):
    return [{**vars(result), "run_ids": ()} for result in results]


def test_results_hold_the_rows_of_the_table(writer, store):
    whole_sweep(writer)
    ours, theirs = both(writer, store)
    assert without_runs(theirs) == without_runs(ours)
    assert [len(result.test) for result in ours] == [3, 0, 0]
    types = [type(value) for value in theirs[0].configuration["mbls"].values()]
    assert types == [float, int, bool, str, float, type(None)]
    assert [len(result.run_ids) for result in theirs] == [3, 0, 0]
    seeds = [tracked_trial(store, run_id).trial.seed for run_id in theirs[0].run_ids]
    assert seeds == [0, 1, 2]


def test_rows_are_in_the_order_of_opening_even_at_equal_times(writer, store):
    writer.clock = itertools.repeat(1_800_000_000_000)
    writer.start()
    recipes = [f"r{number}" for number in range(11)]
    for recipe in recipes:
        writer.open(recipe)
    for results in both(writer, store):
        assert [result.recipe for result in results] == recipes


@in_both
def test_results_agree_at_every_moment_of_a_sweep_and_after_its_resumption(writer, store):
    whole_sweep(writer)
    writer.end("interrupted")
    ours, theirs = both(writer, store)
    assert without_runs(theirs) == without_runs(ours)
    assert ours[2].status == "interrupted"
    assert "interrupted" in ours[2].reason
    writer.start()
    running = writer.open("dfl")
    ours, theirs = both(writer, store)
    assert without_runs(theirs) == without_runs(ours)
    assert (ours[2].status, ours[2].reason) == ("running", "")
    key = writer.begin(running, 1)
    writer.finish(key, val_ece=0.3)
    writer.close(running, key, finished=2)
    good = writer.open("mbls+ts", trials=3, **FACTS)
    writer.close(good, writer.trial(good, 3, 0.1), finished=3, failed=1)
    writer.end()
    ours, theirs = both(writer, store)
    assert without_runs(theirs) == without_runs(ours)
    assert ours[2].validation == {"ece": 0.3}
    assert ours[0].test == ()
    assert len(theirs[0].run_ids) == 1


def test_the_later_of_two_sweeps_with_one_name_counts_by_default(writer, store, tmp_path):
    later = type(writer)(tmp_path / "later", writer.sweep, sweep_id="1a7e")
    later.clock = iter(range(1_900_000_000_000, 1_900_000_001_000))
    for sweep, figure in ((writer, 0.5), (later, 0.25)):
        sweep.start()
        if sweep is writer:
            sweep.open("ce", row=False)
        study = sweep.open("mbls+ts")
        keys = [sweep.trial(study, n, figure, configuration=CONFIGURATION) for n in range(2)]
        sweep.close(study, keys[0])
        sweep.evaluate(keys[0], study, test_ece=figure)
        if sweep is writer:
            again = {"role": "seed", "seed": 1, "configuration": CONFIGURATION}
            other = sweep.trial(study, 2, figure, **again)
            sweep.evaluate(other, study, seed=1, test_ece=0.75)
        sync(sweep.path, store)
    # Delivered again as a whole, after the later one.
    writer.path.with_name("shipped.json").unlink()
    sync(writer.path, store)
    for sweep_id, figures in ((None, [0.25]), ("5eed", [0.5, 0.75]), ("1a7e", [0.25])):
        (only,) = study_results(store, writer.sweep, sweep_id)
        assert [test["ece"] for test in only.test] == figures
        assert only.validation["ece"] == figures[0] / 2
        assert (only.sweep_id, len(only.run_ids)) == (sweep_id or "1a7e", len(figures))


def test_a_trial_of_a_study_that_was_never_opened_is_a_run_of_its_own(writer, store):
    writer.start()
    key = writer.trial(f"{TASK}|mbls", 3, 0.25)
    again = writer.trial(f"{TASK}|mbls", 3, 0.25, role="seed", seed=7)
    assert sync(writer.path, store).refused == []
    tracker = open_tracker(store)
    runs = list(tracker.runs(RunQuery([tracker.sweeps()[writer.sweep]], {})))
    found = {run.tags["calsweep.key"]: run for run in runs}
    assert found.keys() == {key, again}
    tags = {"task": TASK, "recipe": "mbls", "fingerprint": "", "study": f"{TASK}|mbls"}
    assert {f"calsweep.{name}": value for name, value in tags.items()}.items() <= found[
        key
    ].tags.items()
    assert found[key].parent is None
    with pytest.raises(InputError, match=r"is not a trial of a sweep$"):
        tracked_trial(store, found[key].id)


def test_a_tracker_without_studies_is_refused(writer, database):
    writer.start()
    sync(writer.path, database)
    with pytest.raises(InputError, match=r"^no studies on .* yet; run a sweep first$"):
        known_studies(database, writer.sweep)
