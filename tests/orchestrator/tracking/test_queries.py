from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.results import results_of
from orchestrator.tracking import (
    best_trials,
    open_tracker,
    study_results,
    sync,
    tracked_trial,
)
from orchestrator.tracking.tracker import RunQuery
from trainables.common.errors import InputError
from trainables.common.paths import ELSEWHERE

TASK = "digits/convnet/digits"
CONFIGURATION = {
    "mbls": {"margin": 6.0, "hidden": 8, "on": True, "variant": "paper", "lr": 1e-05, "x": None},
    "ts": {"objective": "6.0"},
}


in_both = pytest.mark.parametrize("either_store", ["database", "folder"], indirect=True)


@pytest.fixture
def store(either_store):
    return either_store


@pytest.fixture
def study(writer):
    """Open a study and leave it to the test to fill."""
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


def test_without_a_sweep_all_sweeps_are_searched(writer, store):
    writer.start()
    task = "only/here/once"
    sync(writer.path, store)
    assert study_results(store, writer.sweep) == []
    writer.trial(writer.open("ce", task=task), 0, 0.1)
    sync(writer.path, store)
    (found,) = best_trials(store, task, "ce", top=3)
    assert found.sweep == writer.sweep


@in_both
def test_what_is_unknown_is_answered_by_what_there_is(writer, study, store, tmp_path):
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
        with pytest.raises(InputError, match=rf"^top={top} is outside \[1, inf\)$"):
            best_trials(store, TASK, "ce", top=top)
    missing = tmp_path / "none"
    for uri, kind in ((f"sqlite:///{missing}", "database"), (f"folder:{missing}", "folder")):
        with pytest.raises(InputError) as refusal:
            study_results(uri, "x")
        hint = f" {ELSEWHERE}" if kind == "database" else ""
        told = f"no tracking {kind} at {missing}{hint}; `calsweep sync` builds it"
        assert str(refusal.value) == told
    assert not missing.exists()


@pytest.mark.parametrize("task", ["it's", 'a "b"', "100% _x"])
def test_names_with_marks_of_the_filter_language_are_looked_up(writer, database, task):
    writer.start()
    writer.trial(writer.open("ce", task=task), 0, 0.1)
    sync(writer.path, database)
    assert len(best_trials(database, task, "ce", sweep=writer.sweep)) == 1


def test_a_name_that_cannot_be_quoted_is_refused(writer, study, database):
    sync(writer.path, database)
    with pytest.raises(InputError) as refusal:
        best_trials(database, 'it\'s "it"', "ce")
    text = "'it\\'s \"it\"|ce' cannot be looked up: it holds both ' and \""
    assert str(refusal.value) == text


def whole_sweep(writer):
    """Write a sweep with every kind of study there is."""
    writer.start()
    base = writer.open("ce", row=False)
    writer.close(base, writer.trial(base, 0, 0.4), finished=1)
    good = writer.open("mbls+ts", trials=3)
    keys = [writer.trial(good, n, 0.5 - n / 10, configuration=CONFIGURATION) for n in range(2)]
    seeds = [
        writer.trial(good, seed, 0.3, role="seed", seed=seed, configuration=CONFIGURATION)
        for seed in (2, 1)
    ]
    lost = writer.begin(good, 2)
    writer.finish(lost, status="failed", reason="out of memory")
    writer.close(good, keys[1], finished=2, failed=1, reason="out of memory")
    for seed, key in enumerate([keys[1], seeds[1], seeds[0]]):
        writer.evaluate(key, good, seed=seed, test_ece=seed / 100, test_acc=0.9)
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
    good, bad, running = ours
    assert (good.recipe, good.status, good.sweep, good.task) == (
        "mbls+ts",
        "finished",
        writer.sweep,
        TASK,
    )
    assert good.configuration == CONFIGURATION
    assert good.validation == {"ece": 0.2, "acc": 0.91}
    assert [test["ece"] for test in good.test] == [0.0, 0.01, 0.02]
    assert (good.trials_finished, good.trials_failed, good.reason) == (2, 1, "out of memory")
    assert (bad.status, bad.configuration, bad.test, bad.trials_failed) == ("failed", {}, (), 1)
    assert bad.reason == "no trial finished: loss is NaN"
    assert (running.status, running.trials_finished) == ("running", 1)
    assert [len(result.run_ids) for result in theirs] == [3, 0, 0]
    seeds = [tracked_trial(store, run_id).trial.seed for run_id in theirs[0].run_ids]
    assert seeds == [0, 1, 2]


def test_rows_stand_in_the_order_of_opening_though_all_were_opened_at_once(writer, store):
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
    assert ours[2].status == "failed"
    assert "interrupted" in ours[2].reason
    writer.start()
    running = writer.open("dfl")
    ours, theirs = both(writer, store)
    assert without_runs(theirs) == without_runs(ours)
    assert (ours[2].status, ours[2].reason) == ("running", "")
    key = writer.begin(running, 1)
    writer.finish(key, val_ece=0.3)
    writer.close(running, key, finished=2)
    good = writer.open("mbls+ts", trials=3)
    writer.close(good, writer.trial(good, 3, 0.1), finished=3, failed=1)
    writer.end()
    ours, theirs = both(writer, store)
    assert without_runs(theirs) == without_runs(ours)
    assert ours[2].validation == {"ece": 0.3}
    assert ours[0].test == ()
    assert len(theirs[0].run_ids) == 1


def test_of_two_sweeps_of_one_name_the_later_counts_unless_one_is_named(writer, store, tmp_path):
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


def test_a_seed_counts_once_though_older_code_evaluated_it_too(writer, store):
    writer.start()
    study = writer.open("mbls+ts")
    older = writer.trial(study, 0, 0.3, configuration=CONFIGURATION)
    newer = writer.trial(study, 1, 0.2, configuration=CONFIGURATION)
    writer.close(study, newer)
    writer.evaluate(older, study, test_ece=0.5)
    writer.evaluate(newer, study, test_ece=0.1)
    writer.end()
    for results in both(writer, store):
        assert results[0].test == ({"ece": 0.1},)


FACTS = {
    "dataset": "digits",
    "model": "convnet",
    "protocol": "digits",
    "setting": "5e77",
    "fingerprint": "f2",
}
RULE = {"objective": "val_ece", "accuracy_tolerance": 0.01, "epoch": "last", "tie": "earlier trial"}


def test_where_a_result_comes_from_travels_with_it(writer, store):
    writer.start()
    study = writer.open("mbls+ts", rule=RULE, **FACTS)
    key = writer.trial(study, 0, 0.2, configuration=CONFIGURATION)
    other = writer.trial(study, 1, 0.2, role="seed", seed=1, configuration=CONFIGURATION)
    writer.close(study, key)
    for seed, trial in enumerate((key, other)):
        facts = {"predictions": f"p{seed}", "seconds": 10.5 + seed}
        facts |= {"default_predictions": "d0"} if seed == 0 else {}
        writer.evaluate(trial, study, seed=seed, test_ece=0.1, facts=facts)
    writer.end()
    ours, theirs = both(writer, store)
    assert without_runs(theirs) == without_runs(ours)
    (result,) = theirs
    assert (result.sweep_id, result.code) == ("5eed", "c0ffee")
    assert (result.dataset, result.model, result.protocol) == ("digits", "convnet", "digits")
    assert result.fingerprint == "f2"
    assert result.started == 1_800_000_000.01
    assert result.predictions == ("p0", "p1")
    assert (result.searched_predictions, result.default_predictions) == ("p0", "d0")
    assert result.seconds == (10.5, 11.5)
    assert result.rule == {**RULE, "accuracy_tolerance": "0.01"}
    assert result.test == ({"ece": 0.1}, {"ece": 0.1})


def test_a_study_and_its_trial_come_back_as_the_journal_tells_them(writer, store):
    writer.start()
    below = writer.open("mbls", row=False)
    told = {**FACTS, "upstream": below, "rule": RULE, "origin": {"seeds": [0], "split": {}}}
    study = writer.open("mbls+ts", trials=7, **told)
    key = writer.begin(study, 3, configuration=CONFIGURATION)
    writer.epochs(key)
    ended = {"status": "finished", "metrics": {"val_ece": 0.25}, "artifact": "a0"}
    writer.write("trial_finished", key=key, seconds=1.5, reused=True, **ended)
    writer.score(key, 0.5)
    writer.finish(writer.begin(study, 4), "failed", reason="nan")
    writer.close(study, key, finished=1, failed=1, reason="nan")
    facts = {"predictions": "p0", "default_predictions": "d0", "seconds": 2.5}
    facts["computed"] = {"train": {"cpus": 2}}
    writer.evaluate(key, study, facts=facts, test_ece=0.125)
    writer.end()
    sync(writer.path, store)
    (found,) = best(store, writer)
    ledger = Ledger(read_events(writer.path)[0])
    opened, ours = ledger.studies[study], ledger.trials[key]
    rule = {**RULE, "accuracy_tolerance": "0.01"}
    assert found.study == replace(
        opened, rule=rule, closed=None, begun={}, run_id=found.study.run_id
    )
    metrics = {**ours.metrics, "seconds": 1.5}
    elsewhere = {"seconds": None, "reused": False, "last_step": -1, "epochs": 0}
    assert found.trial == replace(ours, **elsewhere, metrics=metrics, run_id=found.trial.run_id)
    assert (found.study.time, found.trial.time) == (opened.time, ours.time)
    types = [type(value) for value in found.trial.configuration["mbls"].values()]
    assert types == [float, int, bool, str, float, type(None)]


def test_what_older_runs_do_not_tell_is_left_open(writer, tmp_path):
    """Without all tags that were not there from the beginning."""
    writer.start()
    study = writer.open("mbls+ts", rule=RULE, **FACTS)
    key = writer.trial(study, 0, 0.25, configuration=CONFIGURATION)
    writer.close(study, key)
    writer.evaluate(key, study, test_ece=0.125, facts={"predictions": "p0"})
    store = f"folder:{tmp_path}/tracked"
    sync(writer.path, store)
    later = ["dataset", "model", "protocol", "setting", "origin", "git_commit", "reason"]
    later += ["artifact", "predictions", "default_predictions", "computed"]
    for path in (tmp_path / "tracked" / "experiments").glob("*/runs/*.json"):
        record = json.loads(path.read_text())
        for name in list(record["tags"]):
            kind = name.removeprefix("calsweep.")
            if kind in later or kind.startswith(("rule.", "version.")):
                del record["tags"][name]
        path.write_text(json.dumps(record))
    (result,) = study_results(store, writer.sweep)
    assert (result.status, result.validation["ece"], result.test) == (
        "finished",
        0.125,
        ({"ece": 0.125},),
    )
    assert (result.dataset, result.model, result.protocol, result.code) == ("", "", "", "")
    assert (result.rule, result.predictions, result.reason) == ({}, (), "")
    assert (result.varied, result.subset, result.fingerprint) == (False, "", "f2")
    (found,) = best(store, writer)
    assert (found.trial.code, found.trial.artifact, found.trial.computed) == ("", "", {})
    assert (found.study.setting, found.study.versions, found.study.shows(7)) == ("", {}, True)
    assert found.study.upstream is None


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
    with pytest.raises(InputError, match=r"is no trial of a sweep$"):
        tracked_trial(store, found[key].id)


@pytest.mark.parametrize("seeds", [[1, 2], [0, 1, 2], None])
def test_tables_hold_the_seeds_of_the_sweep_not_that_of_its_search(writer, store, seeds):
    writer.start()
    origin = {"seeds": seeds, "splits": {}} if seeds else {"split": {}}
    study = writer.open("mbls", origin=origin)
    key = writer.trial(study, 0, 0.2, configuration=CONFIGURATION)
    trials = [key]
    for seed in (1, 2):
        again = {"role": "seed", "seed": seed, "configuration": CONFIGURATION}
        trials.append(writer.trial(study, seed, 0.2, **again))
    writer.close(study, key)
    for seed, trial in enumerate(trials):
        facts = {"predictions": f"p{seed}", "default_predictions": f"d{seed}"}
        writer.evaluate(trial, study, seed=seed, test_ece=seed / 10, facts=facts)
    for results in both(writer, store):
        shown = seeds or [0, 1, 2]
        assert [test["ece"] for test in results[0].test] == [seed / 10 for seed in shown]
        assert results[0].predictions == tuple(f"p{seed}" for seed in shown)
        assert (results[0].searched_predictions, results[0].varied) == ("p0", bool(seeds))
        assert results[0].default_predictions == "d0"


def test_a_cost_that_is_not_known_for_every_seed_is_left_out(writer, store):
    writer.start()
    study = writer.open("mbls+ts")
    key = writer.trial(study, 0, 0.2, configuration=CONFIGURATION)
    other = writer.trial(study, 1, 0.2, role="seed", seed=1, configuration=CONFIGURATION)
    writer.close(study, key)
    writer.evaluate(key, study, test_ece=0.1, facts={"predictions": "p0", "seconds": 1.0})
    writer.evaluate(other, study, seed=1, test_ece=0.1, facts={"seconds": None})
    for results in both(writer, store):
        assert (results[0].predictions, results[0].seconds, results[0].rule) == ((), (), {})


def test_a_result_tells_that_it_saw_a_part_of_the_data_set_only(writer, store):
    limits = {"validation": 0.1, "train_limit": 5000, "test_limit": None, "seed": 0}
    writer.start()
    writer.open("ce", origin={"split": limits})
    writer.open("mbls", origin={"split": {**limits, "train_limit": None}})
    for results in both(writer, store):
        assert [result.subset for result in results] == ["train_limit 5000", ""]
