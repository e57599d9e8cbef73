import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import yaml

from orchestrator.storage.ledger import Study
from orchestrator.tracking import (
    BestConfig,
    best_config,
    best_trials,
    open_tracker,
    sync,
    tracked_trial,
)
from orchestrator.tracking._comparable import StudyFilter
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

    def run(
        objectives,
        code="c0de",
        tags=None,
        day=0,
        closed=True,
        failed=0,
        chosen=None,
        name=None,
        **facts,
    ):
        number = len(made)
        name = f"{writer.sweep}-{number if name is None else name}"
        made.append(sweep := type(writer)(tmp_path / str(number), name))
        sweep.sweep_id = f"id of {request.node.name}-{number}"
        sweep.clock = iter(range(1_800_000_000_000 + day * DAY + number, 1_900_000_000_000))
        sweep.start(code, {"tags": tags or {}})
        study = sweep.open("ce", task=writer.sweep, **{**FACTS, **facts})
        keys = [sweep.trial(study, n, value) for n, value in enumerate(objectives)]
        for number in range(failed):
            sweep.finish(sweep.begin(study, len(keys) + number), "failed", reason="nan")
        if not keys:
            sweep.end("interrupted")
        elif closed:
            best = min(range(len(keys)), key=lambda n: (objectives[n], n))
            sweep.close(study, keys[best if chosen is None else chosen], finished=len(keys))
            sweep.end()
        sync(sweep.path, store)
        return sweep

    return run


@pytest.fixture
def ask(store, writer):
    def best(top=1, sweep=None, **where):
        return best_trials(store, writer.sweep, "ce", sweep, top, StudyFilter(**where))

    return best


@pytest.mark.parametrize("either_store", ["database", "folder"], indirect=True)
def test_the_best_of_several_sweeps_is_found_by_tag_and_by_search(sweeps, ask):
    sweeps([0.5, 0.2, 0.4])
    sweeps([0.3, 0.3, 0.1], day=1)
    sweeps([0.7, 0.1], day=2)  # The same objective, but an earlier trial of its study.
    (quick,) = ask()
    slow = ask(top=4)
    assert (quick.trial.objective, quick.trial.number, quick.study.time) == (
        0.1,
        1,
        1_800_172_800_003,
    )
    assert slow[0] == quick
    assert [run.trial.objective for run in slow] == [0.1, 0.1, 0.2, 0.3]
    assert quick.study.rule == {**RULE, "accuracy_tolerance": "0.01"}


def test_the_study_opened_first_wins_a_tie(sweeps, ask):
    later = sweeps([0.3, 0.2], day=1)
    first = sweeps([0.4, 0.2])
    assert [run.sweep for run in ask()] == [first.sweep]
    assert [run.sweep for run in ask(top=2)] == [first.sweep, later.sweep]


def test_the_lower_number_wins_a_tie_in_an_open_study(sweeps, ask):
    sweeps([0.3, 0.2])
    later = sweeps([0.2, 0.4], day=1, closed=False)
    assert [(run.trial.number, run.sweep) for run in ask()] == [(0, later.sweep)]


def test_the_best_trials_may_all_come_from_one_sweep(sweeps, ask):
    sweeps([0.5])
    sweeps([0.2, 0.1], day=1)
    assert [run.trial.objective for run in ask(top=2)] == [0.1, 0.2]


def test_a_trial_of_a_study_that_is_still_open_counts(sweeps, ask):
    sweeps([0.5, 0.2])
    running = sweeps([0.3, 0.0], day=1, closed=False)
    assert [(run.trial.objective, run.sweep) for run in ask()] == [(0.0, running.sweep)]
    assert [run.rank.objective for run in ask(top=2)] == [0.0, 0.2]


BY_DATA = "fingerprint f1, convnet by p", "--fingerprint, or name one sweep"
BY_RULE = "val_ece with accuracy tolerance 0.01", "--tag, --since or --until, or name a sweep"


@pytest.mark.parametrize(
    ("change", "told", "kind"),
    [
        ({"fingerprint": "f2", "setting": "s2"}, "fingerprint f2, convnet by p", BY_DATA),
        ({"fingerprint": "f2"}, "fingerprint f2, convnet by p", BY_DATA),
        ({"setting": "s3", "protocol": "q"}, "fingerprint f1, convnet by q", BY_DATA),
        (
            {"rule": {**RULE, "objective": "val_nll"}},
            "val_nll with accuracy tolerance 0.01",
            BY_RULE,
        ),
        (
            {"rule": {**RULE, "accuracy_tolerance": None}},
            "val_ece with accuracy tolerance null",
            BY_RULE,
        ),
        (
            {"rule": {**RULE, "accuracy_errors": 2, "keep_default": True}},
            f"{BY_RULE[0]}, accuracy errors 2, default kept: true",
            BY_RULE,
        ),
        ({"rule": {}}, "rule unknown", BY_RULE),
    ],
)
def test_studies_that_differ_are_not_ranked_together(sweeps, ask, writer, change, told, kind):
    first = sweeps([0.5])
    second = sweeps([0.1], day=1, **change)
    with pytest.raises(InputError) as refusal:
        ask()
    before, remedy = kind
    assert str(refusal.value) == (
        f"studies of 'ce' on {writer.sweep!r} differ and cannot be ranked together: "
        f"{before} ({first.sweep}); {told} ({second.sweep}); select some with {remedy}"
    )
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


def test_without_a_finished_trial_there_is_no_best_one(sweeps, ask):
    sweeps([])
    sweeps([], day=1, setting="s3")
    assert ask() == []


def test_a_fingerprint_selects_the_data(sweeps, ask, writer, store):
    first = sweeps([0.5])
    second = sweeps([0.1], day=1, fingerprint="a2b3" * 16, setting="s2")
    assert [run.trial.objective for run in ask(fingerprint="f1")] == [0.5]
    assert [run.trial.objective for run in ask(fingerprint="a2")] == [0.1]
    assert [run.trial.objective for run in ask(top=5, fingerprint="any")] == [0.1, 0.5]
    with pytest.raises(InputError) as refusal:
        ask(fingerprint="b3")
    days = [datetime.fromtimestamp(1_800_000_000 + at).strftime("%Y-%m-%d") for at in (0, 86_400)]
    assert str(refusal.value) == (
        f"no study of 'ce' on {writer.sweep!r} on {store} fulfils --fingerprint b3; there are: "
        f"code c0de of {days[0]} on data f1 ({first.sweep}); "
        f"code c0de of {days[1]} on data a2b3a2b3a2b3 ({second.sweep})"
    )


def test_only_the_latest_code_counts_and_other_versions_are_named(sweeps, ask):
    old = sweeps([0.1], code="a1")
    sweeps([0.3], code="b2", day=1)
    sweeps([0.2], code="b2", day=2)
    (best,) = ask()
    assert (best.trial.objective, best.trial.code) == (0.2, "b2")
    assert best.note.startswith("from code b2, the latest; excluded: code a1 of ")
    assert old.sweep in best.note
    assert [(run.trial.objective, run.note) for run in ask(code="a")] == [(0.1, "")]
    assert [run.trial.objective for run in ask(top=3)] == [0.2, 0.3]
    assert [run.trial.objective for run in ask(top=3, code="any")] == [0.1, 0.2, 0.3]


def test_excluded_studies_are_listed_by_kind_with_some_sweeps(sweeps, ask):
    old = [sweeps([0.1], code="a" * 40).sweep for _ in range(3)]
    dirty = [sweeps([0.1], code="b" * 40 + "-dirty", day=3).sweep for _ in range(5)]
    again = [sweeps([0.1], code="d" * 40, day=3, name="again").sweep for _ in range(4)]
    sweeps([0.5], code="c" * 40, day=9)
    (best,) = ask()
    days = [
        datetime.fromtimestamp(1_800_000_000 + day * 86_400).strftime("%Y-%m-%d") for day in (0, 3)
    ]
    assert best.note == (
        f"from code {'c' * 12}, the latest; excluded: "
        f"code {'a' * 12} of {days[0]} ({', '.join(old)}); "
        f"code {'b' * 12}-dirty of {days[1]} ({', '.join(dirty[:3])} and 2 more); "
        f"code {'d' * 12} of {days[1]} ({again[0]}); "
        "select another with --code, or all with --code any"
    )


def test_only_the_latest_code_counts_among_sweeps_of_one_name(sweeps, ask):
    sweeps([0.1], code="a1", name="same")
    sweeps([0.4, 0.3], code="b2", day=1, name="same")
    assert [run.trial.objective for run in ask()] == [0.3]
    assert [run.trial.objective for run in ask(top=5)] == [0.3, 0.4]


def test_a_prefix_that_fits_several_does_not_mix_them(sweeps, ask):
    sweeps([0.1], code="a1", day=0)
    sweeps([0.3], code="a2", day=1)
    (best,) = ask(code="a")
    assert best.trial.objective == 0.3
    assert best.note.startswith("from code a2, the latest; excluded: code a1 of ")
    sweeps([0.2], code="a2", day=2, fingerprint="f2", setting="s2")
    with pytest.raises(InputError, match="cannot be ranked together"):
        ask(fingerprint="f")


def test_a_trial_of_a_study_that_was_broken_off_counts(sweeps, ask, store):
    sweep = sweeps([0.5, 0.2], closed=False)
    sweep.end("interrupted")
    sync(sweep.path, store)
    assert [run.trial.objective for run in ask()] == [0.2]


def test_without_a_recorded_choice_all_trials_are_searched(sweeps, ask, tmp_path):
    """As by shippers of before there was a tag for it."""
    sweeps([0.5])
    old = sweeps([0.3, 0.1], day=1)
    for path in (tmp_path / "tracked" / "experiments").glob("*/runs/*.json"):
        record = json.loads(path.read_text())
        if record["tags"]["calsweep.sweep"] == old.sweep:
            record["tags"].pop("calsweep.best_of", None)
            path.write_text(json.dumps(record))
    assert [run.trial.objective for run in ask()] == [0.1]


def test_a_default_that_was_kept_comes_before_lower_objectives(sweeps, ask):
    rule = {**RULE, "keep_default": True}
    sweeps([0.5, 0.2], rule=rule, chosen=0)
    assert [run.trial.objective for run in ask()] == [0.5]
    assert [run.trial.objective for run in ask(top=3)] == [0.5, 0.2]
    sweeps([0.4, 0.6], rule=rule, day=1)
    assert [run.trial.objective for run in ask()] == [0.4]
    assert [run.trial.objective for run in ask(top=9)] == [0.4, 0.5, 0.2, 0.6]


@pytest.mark.usefixtures("far_east")
def test_a_configuration_has_its_provenance(sweeps, writer, store, monkeypatch):
    other = sweeps([0.1], tags={"team": "blue"})
    sweep = sweeps([0.5, 0.2], tags={"team": "red"}, day=1)
    opened = datetime.fromtimestamp(1_800_086_400).astimezone()
    found, next_best = best_config(
        writer.sweep,
        "ce",
        tracking_uri=store,
        top=2,
        since=opened,
        until=opened + timedelta(seconds=1),
        tags={"team": "red"},
        fingerprint="f",
        code="c0",
    )
    assert next_best.objective == 0.5
    assert found == BestConfig(
        task=writer.sweep,
        recipe="ce",
        sweep=sweep.sweep,
        run_id=found.run_id,
        number=1,
        objective=0.2,
        rule={**RULE, "accuracy_tolerance": "0.01"},
        fixed={"ce": {"margin": 1.5}},
        validation={"val_ece": 0.1, "val_acc": 0.91},
        sweep_id=sweep.sweep_id,
        fingerprint="f1",
        code="c0de",
        started=opened.isoformat(timespec="seconds"),
    )
    assert tracked_trial(store, found.run_id).trial.objective == 0.2
    plain = {name: value for name, value in vars(found).items() if name != "note"}
    assert found.to_json() == json.dumps(plain, indent=2)
    assert list(yaml.safe_load(found.to_yaml()).items()) == list(plain.items())
    origin = f"# ce on {writer.sweep}: trial 1 of sweep {sweep.sweep}"
    assert found.to_fixed() == f"  {origin}\n  fixed:\n    ce:\n      margin: 1.5\n"
    more = replace(found, fixed={"mbls": {"weight": 0.1, "margin": 6.0}, "macal": {"gamma": 0.9}})
    lines = ["fixed:", "mbls:", "weight: 0.1", "margin: 6.0", "macal:", "gamma: 0.9"]
    assert [line.strip() for line in more.to_fixed().splitlines()[1:]] == lines
    (earlier,) = best_config(writer.sweep, "ce", tracking_uri=store, sweep=other.sweep)
    assert earlier.objective == 0.1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert best_config(writer.sweep, "ce", sweep=other.sweep) == [earlier]


def test_the_code_of_a_configuration_is_that_of_its_trial(writer, store):
    writer.start("old")
    study = writer.open("ce", task=writer.sweep, **FACTS)
    keys = [writer.trial(study, 0, 0.3)]
    writer.start("new")
    keys.append(writer.trial(study, 1, 0.2))
    writer.close(study, keys[1])
    writer.end()
    sync(writer.path, store)
    found = best_config(writer.sweep, "ce", tracking_uri=store, top=2)
    assert [(one.objective, one.code) for one in found] == [(0.2, "new"), (0.3, "old")]


def test_a_run_that_is_no_finished_trial_is_refused(writer, store):
    writer.start()
    study = writer.open("ce")
    scored, unscored = writer.begin(study, 0), writer.begin(study, 1)
    writer.score(scored, 0.5)
    writer.finish(unscored, val_ece=0.1)
    sync(writer.path, store)
    tracker = open_tracker(store)
    runs = tracker.runs(RunQuery(list(tracker.sweeps().values()), {}))
    ids = {run.tags["calsweep.key"]: run.id for run in runs}
    said = {study: "trial of a sweep", scored: "finished trial", unscored: "finished trial"}
    for key, what in said.items():
        with pytest.raises(InputError) as refusal:
            tracked_trial(store, ids[key])
        assert str(refusal.value) == f"run '{ids[key]}' on {store} is not a {what}"
    with pytest.raises(InputError) as refusal:
        tracked_trial(store, "r1")
    folder = store.removeprefix("folder:")
    assert str(refusal.value) == f"no run 'r1' on {store}: no run 'r1' in {folder}"


@pytest.mark.usefixtures("far_east")
def test_filters_are_printed_as_options():
    since, until = (datetime(2026, 1, day).timestamp() for day in (2, 4))
    where = StudyFilter(since, until, {"a": "b", "c": "d"}, "f1", "c0de")
    assert str(where) == (
        "--since 2026-01-02 --until 2026-01-03 --tag a=b --tag c=d --fingerprint f1 --code c0de"
    )
    assert str(StudyFilter()) == ""


def test_since_includes_its_moment_and_until_does_not():
    opened = Study(index=0, study="t|ce", task="t", recipe="ce", trials=1, row=True, time=5000)
    assert StudyFilter(since=5.0).holds(opened, {})
    assert not StudyFilter(until=5.0).holds(opened, {})
    assert StudyFilter(until=5.001).holds(opened, {})


def test_studies_are_found_by_time_and_by_the_tags_of_their_sweep(sweeps, ask, store):
    sweeps([0.5], tags={"team": "red", "place": "here"})
    blue = sweeps([0.4], tags={"team": "blue", "place": "here"}, day=2)
    sweeps([0.3], day=4)
    start = 1_800_000_000.0
    assert [run.trial.objective for run in ask(tags={"team": "red", "place": "here"})] == [0.5]
    assert [run.trial.objective for run in ask(since=start + 86_400, until=start + 3 * 86_400)] == [
        0.4
    ]
    assert [run.trial.objective for run in ask(until=start + 86_400)] == [0.5]
    with pytest.raises(InputError, match="fulfils --tag team=green; there are: "):
        ask(tags={"team": "green"})
    with pytest.raises(InputError, match="fulfils --tag team=re; there are: "):
        ask(tags={"team": "re"})
    tracker = open_tracker(store)
    (experiment,) = (found for name, found in tracker.sweeps().items() if name == blue.sweep)
    assert (
        len(list(tracker.runs(RunQuery([experiment], {"team": "blue"})))) == 2
    )  # The study and its trial.
