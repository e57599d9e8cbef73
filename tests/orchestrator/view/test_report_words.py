"""What the page says in words and figures, of made-up results."""

import sys
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution

from orchestrator.statistics import Difference, PairedBootstrap, TaskComparison
from orchestrator.storage.events import SweepStarted
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.results import StudyResult
from orchestrator.storage.storage import Storage
from orchestrator.tracking._process import Memory
from orchestrator.view import ReportSource, from_folder, render_report
from orchestrator.view._panels import Curves, Measured
from orchestrator.view._records import (
    Failure,
    Run,
    arena_of,
    computed,
    facts,
    failures,
    ranked_by,
    ranks,
    runs,
    summary,
)
from orchestrator.view._studies import distribution, retention_figures, study_parts
from orchestrator.view._tasks import KEPT, task_part
from tests.charts import axes_of, charts_of, layer_of, points_of, rows_of
from trainables.common.stages import ArtifactRef
from trainables.metrics import reliability_curve, risk_coverage_curve
from trainables.store.artifacts import ArtifactStore

TASK = "digits/convnet/digits"


def result(recipe, *eces, task=TASK, status="finished", **fields):
    test = tuple({"ece": ece, "acc": 0.9, "ece_floor": ece / 4} for ece in eces)
    return StudyResult("night", task, recipe, status, test=test, **fields)


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "artifacts")


def told(results, store, events=None, runs=None):
    history = None if events is None else Ledger(events)
    return ReportSource("night", results, history, store, runs or {})


# The sweep as a whole


def test_the_summary_has_the_size_of_a_sweep(store):
    results = [
        result("ls", 0.1, trials_finished=4),
        result("ce", 0.1, 0.2, trials_finished=3, trials_failed=1),
        result("ce", status="failed", task="other", trials_failed=2),
    ]
    assert summary(told(results, store)) == (
        "2 recipes, 2 tasks, 2 seeds, 7 finished search trials, 3 failed"
    )
    alone = [result("ce", trials_finished=1)]
    assert summary(told(alone, store)) == "1 recipe, 1 task, 1 finished search trial"


def test_ranks_are_by_ece_and_of_given_logits_by_nll(store):
    images = [result(name, 0.1, dataset="d", model="m") for name in ("ce", "ls")]
    assert ranked_by(told(images, store)) == "ece"
    assert arena_of(told(images, store)) == (None, "")
    picture, problem = ranks(told(images, store))
    assert picture.label == "Average rank by ECE: critical-difference diagram of average ranks"
    assert [row["name"] for row in rows_of(picture, "stem")] == ["ce", "ls"]
    assert problem == ""
    given = [replace(found, model="given") for found in images]
    assert ranked_by(told(given, store)) == "nll"
    assert ranks(told(given, store))[0] is None
    assert ranks(told(given, store))[1].startswith("No ranks over data sets and models: 0 recipes")
    assert arena_of(told(given, store))[1].startswith("No arena: an arena needs figures of two")


def test_given_logits_of_several_tasks_have_ranks_and_an_arena_on_their_page(store):
    rows = [(recipe, task) for recipe in ("given", "ts") for task in "ab"]
    figures = {
        name: {"nll": 0.5, "brier": 0.25, "ece": 0.1, "acc": 0.9} for name in ("given", "ts")
    }
    figures["ts"]["nll"] = 0.4
    results = [
        replace(result(recipe, task=task), test=(figures[recipe],), dataset=task, model="given")
        for recipe, task in rows
    ]
    page = render_report(told(results, store))
    assert "with every other on 2 tasks of 2 networks, with 1 splits each." in page
    (drawn,) = (each for each in charts_of(page) if "rank" in each["description"])
    assert drawn["description"].startswith("Average rank by NLL: ")
    page = render_report(told([*results[:2], result("ts", 0.1, task="a", model="given")], store))
    assert "No ranks over data sets and models: " in page
    assert "No arena: an arena needs figures of two recipes on every task and seed" in page
    assert "is compared with every other" not in page
    mixed = [result("ls", 0.1, model="m"), replace(results[0], seconds=(2.0,))]
    assert "× given</th>" in render_report(told(mixed, store))


def test_an_arena_without_its_package_has_a_reason(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "choix", None)
    figures = ({"nll": 0.5, "brier": 0.25, "ece": 0.1},)
    both = [replace(result(name, model="given"), test=figures) for name in ("given", "ts")]
    assert arena_of(told(both, store)) == (
        None,
        "No arena: import of choix halted; None in sys.modules.",
    )


@pytest.fixture
def journal(tmp_path, journal_writer):
    """Return the writer of a journal in a storage's folder."""
    return journal_writer(tmp_path / "sweeps" / "night", "night")


def gathered(tmp_path, results=None):
    return from_folder(Storage(tmp_path).sweep("night"), results)


def reuse(writer, key, **fields):
    fields = {"metrics": {}, "reason": "", "seconds": 0.0, **fields}
    writer.write("trial_finished", key=key, status="finished", reused=True, **fields)


@pytest.mark.parametrize(("seconds", "words"), [(119.4, "1 min 59 s"), (7200, "2 h 00 min")])
def test_computed_and_reused_stages_are_counted(journal, tmp_path, seconds, words):
    journal.start()
    study = journal.open("ce", trials=4)
    keys = [journal.begin(study, number) for number in range(4)]
    for key, took in ((keys[0], seconds - 1.0), (keys[1], 1.0)):
        fields = {"metrics": {}, "reason": "", "reused": False, "seconds": took}
        journal.write("trial_finished", key=key, status="finished", **fields)
    reuse(journal, keys[2], seconds=500.0)
    tuned = journal.open("ce+macal", trials=1)
    journal.begin(tuned, 0, stage="refine")
    journal.end("interrupted")
    assert computed(gathered(tmp_path).history) == (
        f"5 trials computed 3 trainings, 1 refinement in {words} of processing; "
        "1 reused a stored outcome."
    )


@pytest.mark.parametrize("ended", ["finished", "interrupted", ""])
def test_failed_and_unfinished_trials_are_listed(journal, tmp_path, ended):
    journal.start()
    study = journal.open("ce", trials=3)
    failed = journal.begin(study, 0, configuration={"ce": {"é": 1}})
    journal.finish(failed, status="failed", reason="NaN")
    journal.begin(study, 1)
    good = journal.trial(study, 2, 0.1)
    journal.finish(journal.begin(study, 0, role="seed", seed=7), status="failed", reason="full")
    journal.close(study, good, finished=1, failed=1)
    lost = journal.open("ls")
    journal.close(lost, None, finished=1, failed=2)
    if ended:
        journal.end(ended)
    found = list(failures(gathered(tmp_path)))
    begun = '{"ce": {"margin": 1.5}}'
    pending = [Failure("ce", TASK, "trial 1", "did not end", begun)] if ended == "finished" else []
    assert found[0].key == failed
    assert [one._replace(key="") for one in found] == [
        Failure("ce", TASK, "trial 0", "NaN", '{"ce": {"é": 1}}'),
        *pending,
        Failure("ce", TASK, "seed 7", "full", '{"ce": {"margin": 0.5}}'),
        Failure("ls", TASK, "study failed", "1 trial finished, 2 failed"),
    ]
    reasons = [result("fl", status="failed", reason="why"), result("au", status="running")]
    assert [(one.what, one.reason) for one in failures(told(reasons, None))] == [
        ("study failed", "why"),
        ("study running", "0 trials finished, 0 failed"),
    ]
    assert [one.what for one in failures(told(reasons, None), live=True)] == ["study failed"]


def evaluated(journal, study, key, seed=0, predictions="", **facts):
    facts = {"predictions": predictions, **facts}
    journal.evaluate(key, study, seed=seed, facts=facts, test_ece=0.1)


@pytest.mark.parametrize("shown", [(3, 1), (3,)])
def test_runs_are_those_of_the_choice_seed_by_seed(journal, tmp_path, shown):
    journal.start()
    facts = {"origin": {"seeds": list(shown)}}
    study = journal.open("ce", trials=3, **facts)
    chosen = {"ce": {"margin": 2.5}}
    other = journal.begin(study, 0, seed=3)
    best = journal.begin(study, 1, seed=3, configuration=chosen)
    again = journal.begin(study, 1, role="seed", seed=1, configuration=chosen)
    same = journal.begin(study, 2, seed=3, configuration=chosen)  # Which nobody tested.
    for key in (other, best, again, same):
        journal.finish(key)
    journal.close(study, best)
    evaluated(journal, study, best, 3, "b" * 64)
    evaluated(journal, study, again, 1, "a" * 64)
    evaluated(journal, study, other, 3, "c" * 64)
    journal.end()
    Memory(runs={best: "run of best"}).save(journal.path)
    source = gathered(tmp_path)
    last = Run("ce", TASK, 3, best[:12], "run of best", "b" * 12)
    first = Run("ce", TASK, 1, again[:12], "", "a" * 12)
    assert list(runs(source)) == ([first, last] if 1 in shown else [last])
    # What the results tell is taken where the journal tells nothing, or of more or fewer seeds.
    for seeds in ((0.1,), (0.1, 0.2, 0.3)):
        known = [result("ce", *seeds, configuration=chosen, run_ids=("r1",))]
        told_runs = list(runs(gathered(tmp_path, known)))
        if len(seeds) == len(shown):
            assert told_runs[-1].run == "run of best"
        else:
            unknown = [Run("ce", TASK, None, "", "", "")] * (len(seeds) - 1)
            assert told_runs == [Run("ce", TASK, None, "", "r1", ""), *unknown]
    alone = [result("ce", 0.1, 0.2, run_ids=("r1",), predictions=("p" * 64,))]
    assert list(runs(told(alone, None))) == [
        Run("ce", TASK, None, "", "r1", "p" * 12),
        Run("ce", TASK, None, "", "", ""),
    ]


def test_rows_in_two_parts_come_first(store):
    line = "5 of 10 test rows are copies of training rows (5), so test figures may be too good"
    source = told([result("ce", 0.1, copies=(line,))], store)
    lead = task_part(source, TASK, Measured(), "ce")["lead"]
    assert lead[0] == f"{TASK}: {line}."


@pytest.mark.usefixtures("far_east")
def test_the_provenance_of_the_figures(journal, tmp_path, store):
    journal.start(
        spec={"search": {"sampler": "tpe", "trials": 12}, "seeds": [3, 1]},
        versions={"torch": "2", "ray": "3"},
        hardware={"gpus": [], "cpu": 4, "hosts": ["b", "a"]},
    )
    rule = {"objective": "ece", "accuracy_tolerance": "0.01", "epoch": "last", "tie": "earlier"}
    more = {**rule, "accuracy_errors": "1", "keep_default": "2"}
    known = {"sweep_id": "5eed", "code": "c0ffee", "rule": rule}
    results = [
        result("ce", fingerprint="f1", started=1_800_000_000.0, subset="test_limit 9", **known),
        result("ls", fingerprint="f2", started=1_700_000_000.0, **known),
        result("fl", task="other", **{**known, "rule": more, "code": "c1"}),
    ]
    found = facts(gathered(tmp_path, results))
    one = "lowest ece, accuracy tolerance 0.01, epoch: last, tie: earlier"
    both = f"{one}, {one}, plus 1 standard error, the published default unless clearly beaten"
    assert found == [
        ("Sweep", "night 5eed"),
        ("Started", "2023-11-14 22:13 UTC"),
        ("Code", "c0ffee, c1"),
        (f"Data of {TASK}", "f1, f2; a part of the data set: test_limit 9"),
        ("Data of other", "not known"),
        ("Choice", both),
        ("Search", "tpe, 12 trials per study"),
        ("Seeds", "3, 1"),
        ("Versions", "torch 2, ray 3"),
        ("Hardware", "gpus none, cpu 4, hosts b, a"),
        ("State", "running"),
    ]
    bare = Ledger([SweepStarted(sweep="night", sweep_id="5eed", spec={}, provenance={})])
    unknown = [("Sweep", "night "), ("Code", "not known")]
    assert facts(ReportSource("night", [], bare, store)) == [*unknown, ("State", "running")]
    part = dict(facts(told([result("ce", rule={"tie": "later"})], store)))
    assert part["Choice"] == "lowest ?, accuracy tolerance ?, epoch: ?, tie: later"
    plain = facts(told([result("ce")], store))
    assert plain == [*unknown, (f"Data of {TASK}", "not known")]


# What is at hand


def test_the_stage_that_a_recipe_ends_with(journal, tmp_path, store):
    journal.start()
    for recipe, stage in (("ce", "train"), ("ce+macal", "refine"), ("given", "given")):
        journal.begin(journal.open(recipe), 0, stage=stage)
    journal.open("empty")
    source = gathered(tmp_path)
    names = ("ce", "ce+macal", "given", "empty", "unknown")
    stages = [source.stage(result(name)) for name in names]
    assert stages == ["train", "refine", "train", "train", "train"]
    assert told([], store).stage(result("ce")) == "train"


# One task


def compared(metric, gaps, floors=None):
    values = {"ce": 0.04, **{name: 0.04 + gap.value for name, gap in gaps.items()}}
    found = PairedBootstrap(metric, "ce", values, gaps, dict.fromkeys(values, 1), 120, 500)
    return TaskComparison(TASK, found, floors or {}, {})


GAPS = {
    "ls": Difference(-0.02, -0.03, -0.01),
    "fl": Difference(0.02, 0.01, 0.03),
    "dfl": Difference(0.001, -0.01, 0.01),
    "au": Difference(0.005, 0.001, 0.009),
}
FLOORS = dict.fromkeys(("ce", *GAPS), 0.005)


@pytest.fixture
def part(store):
    """Return the part of a task of which all that can be measured is made up."""
    results = [result("ce", 0.04, seconds=(2.0,)), result("ls", 0.02), result("fl", 0.06)]
    results += [result("dfl", 0.041), result("au", 0.045), result("mbls", status="failed")]
    comparisons = {"ece": compared("ece", GAPS, FLOORS), "acc": compared("acc", GAPS)}
    return task_part(told(results, store), TASK, Measured(comparisons=comparisons), "ce")


def test_the_lead_of_a_report_names_the_best_recipe_and_real_differences(part):
    assert not part["seeds"]
    assert part["lead"] == [
        "ls has the lowest ECE, 2.00 %; ce has 4.00 %. A perfectly calibrated "
        "network with the confidences of ls would show about 0.50 % on these test data.",
        "Compared with ce, 1 recipe has a lower ECE beyond chance and 1 recipe has a higher one; "
        "for 2 recipes chance can explain the difference.",
    ]


def test_the_best_alone_is_not_compared_with_itself(store):
    results = [result("ce", 0.01), result("ls", 0.02), result("fl", float("nan"))]
    none = Measured(comparisons={"ece": compared("ece", {})})
    (first, second) = task_part(told(results, store), TASK, none, "ce")["lead"]
    assert first.startswith("ce has the lowest ECE, 1.00 %. A perfectly calibrated")
    assert second == (
        "Compared with ce, no recipe has a lower ECE beyond chance and no recipe has a higher one; "
        "for 0 recipes chance can explain the difference."
    )
    unknown = [StudyResult("night", TASK, "ls", "finished", test=({"ece": 0.02},))]
    alone = task_part(told(unknown, store), TASK, Measured(), "ce")
    assert alone["lead"] == ["ls has the lowest ECE, 2.00 %."]
    assert alone["bootstrap"] is None
    empty = task_part(told([result("ce")], store), TASK, Measured(), "ce")
    assert empty["lead"] == ["No recipe has a test figure yet."]
    several = {name: Difference(-0.02, -0.03, -0.01) for name in ("ls", "fl")}
    many = Measured(comparisons={"ece": compared("ece", several)})
    assert "2 recipes have a lower" in task_part(told(results, store), TASK, many, "ce")["lead"][1]


def test_differences_have_their_tone_and_ends(part):
    shown = {name: (s.text, s.tone, s.ends) for name, s in part["shifts"]["ece"].items()}
    assert shown == {
        "ls": ("−2.00", "better", "−3.00 to −1.00"),
        "fl": ("+2.00", "worse", "+1.00 to +3.00"),
        "dfl": ("≈ +0.10", "similar", "−1.00 to +1.00"),
        "au": ("≈ +0.50", "similar", "+0.10 to +0.90"),
    }
    accuracy = {name: shift.tone for name, shift in part["shifts"]["acc"].items()}
    assert accuracy == {"ls": "worse", "fl": "better", "dfl": "similar", "au": "better"}
    assert [shift.value for shift in part["shifts"]["acc"].values()] == [-0.02, 0.02, 0.001, 0.005]


def test_the_scatter_is_of_finite_figures_and_the_baselines_floor(part, store):
    rows = rows_of(part["scatter"], "mark")
    told_of = [(row["recipe"], row["at_accuracy"], row["at_error"]) for row in rows]
    assert (told_of[1], len(told_of)) == (("ls", "90.00 %", "2.00 %"), 5)
    assert axes_of(part["scatter"]) == ["ECE %, lower is better", "accuracy %"]
    few = [result("ce", 0.04), result("ls", float("inf"))]
    few += [StudyResult("night", TASK, "fl", "finished", test=({"acc": 0.9},))]
    assert task_part(told(few, store), TASK, Measured(), "ce")["scatter"] is None


def test_the_scatter_has_the_baselines_floor_and_each_recipes_own_stage(journal, tmp_path):
    journal.start()
    rows = {"ls+ts": ("calibrate", 0.02, 0.025), "ce": ("train", 0.04, 0.03)}
    rows["fl+macal"] = ("refine", 0.03, 0.035)
    results = []
    for recipe, (stage, ece, floor) in rows.items():
        journal.begin(journal.open(recipe), 0, stage=stage)
        test = ({"acc": 0.9, "ece": ece, "ece_floor": floor},)
        results.append(StudyResult("night", TASK, recipe, "finished", test=test))
    part = task_part(gathered(tmp_path, results), TASK, Measured(), "ce")
    chart = part["scatter"]
    assert [row["error"] for row in rows_of(chart, "floor")] == [pytest.approx(3.0)]
    assert points_of(chart, "ring") == [pytest.approx((4.0, 90.0))]
    assert {row["recipe"]: row["stage"] for row in rows_of(chart, "mark")} == {
        recipe: stage for recipe, (stage, *_) in rows.items()
    }


def test_tables_of_a_report_have_only_measured_metrics(store):
    measures = ("debiased_ece", "smooth_ece", "aece", "cwece", "mce", "nll", "brier")
    row = dict.fromkeys(("acc", "ece", "nll_after_ts", *reversed(measures)), 0.5)
    suites = {f"{name}/ece": 0.5 for name in "abcdefghijklmnopqr"}
    suites |= {"a/nll": 0.5, "a/auroc": 0.5, "ce/iou": 0.5, "a/fpr95": 0.5, "a/acc": 0.5}
    measured = result("ce", seconds=())
    measured = replace(measured, test=({**row, **suites}, {**row, **suites}))
    part = task_part(told([result("ls"), measured], store), TASK, Measured(), "ce")
    assert part["table"].metrics == ("acc", "ece")
    (_, others), (_, sets) = part["further"]
    assert others.metrics == measures
    first = ("a/acc", "a/auroc", "a/ece", "a/fpr95")
    assert sets.metrics == (*first, *(f"{name}/ece" for name in "bcdefghijklm"))
    assert (part["left"], part["seeds"], part["gained"]) == (5, True, None)
    few = replace(measured, test=({"acc": 0.5, "ece": 0.5, "nll": 0.5, "brier": 0.5},))
    (only,) = task_part(told([few], store), TASK, Measured(), "ce")["further"]
    assert only[1].metrics == ("nll", "brier")


def test_maps_are_of_the_task_whose_predictions_are_at_hand(store):
    rows = torch.ones(1, 2, 2, 4, dtype=torch.uint8)
    maps = {"rows": rows, "predicted": rows[..., 0], "confidence": rows[..., 0]}
    for key in ("ab", "cd"):
        store.write(ArtifactRef("evaluate", key * 32), {"maps": maps}, {"metrics": {}})
    results = [
        result("ce", 0.1, predictions=("ab" * 32,)),
        result("ls", 0.1, predictions=("ef" * 32,)),
        result("fl", 0.1, predictions=("cd" * 32,), task="other"),
    ]
    for task, recipe in ((TASK, "ce"), ("other", "fl")):
        found = task_part(told(results, store), task, Measured(), "ce")["maps"]
        assert [shown.recipe for shown in found] == [recipe]


def test_gains_are_shown_of_recipes_whose_default_is_known(store):
    kept = {"searched_predictions": "k", "default_predictions": "k"}
    results = [result("ce", 0.04), result("ls", 0.02), result("fl", 0.03, **kept)]
    results.append(result("ls", 0.02, task="other", **kept))
    gaps = {"ls": GAPS["ls"], "fl": Difference(0.0, 0.0, 0.0)}
    gains = {"ece": compared("ece", gaps), "acc": compared("acc", gaps)}
    part = task_part(told(results, store), TASK, Measured(gains=gains), "ce")
    assert part["gained"].recipes == ("ls", "fl")
    assert part["gained"].metrics == ("acc", "ece")
    for metric in ("acc", "ece"):
        assert part["gains"][metric]["ls"].value == -0.02
        assert part["gains"][metric]["fl"] is KEPT


def curves(*rights):
    """Return curves of seeds whose rows are ever less sure, right where it is said."""
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]).double()
    labels = [1 - torch.tensor(right) for right in rights]
    whole = reliability_curve(probs=probs.repeat(len(rights), 1), labels=torch.cat(labels))
    risk = tuple(risk_coverage_curve(probs=probs, labels=own) for own in labels)
    return Curves(whole, risk, 0.0123)


def _highest(panel):
    return layer_of(panel, "ours")["encoding"]["y"]["scale"]["domain"][1]


def test_risk_panels_end_above_the_highest_error_of_all_rows(store):
    results = [result("ce", 0.04), result("ls", 0.02), result("fl", 0.02)]
    measured = Measured({"ce": curves([1, 1, 1, 0]), "ls": curves([0, 1, 0, 1], [1, 1, 1, 1])})
    part = task_part(told(results, store), TASK, measured, "ce")
    first, second = part["risk"]
    assert [_highest(panel) for panel in (first, second)] == [pytest.approx(0.55)] * 2
    assert [panel.title for panel in (first, second)] == ["ce", "ls"]
    # Errors among the first 1, 2, 3, 4: 1, 1/2, 2/3, 1/2, and none in the other seed.
    area = fmean(curve.area for curve in measured.curves["ls"].risk)
    assert second.text == f"area {100 * area:.2f} %"
    assert area == pytest.approx((1 + 1 / 2 + 2 / 3 + 1 / 2) / 4 / 2)
    assert [layer_of(panel, "reference") is not None for panel in part["risk"]] == [False, True]
    perfect = Measured({"ce": curves([1, 1, 1, 1])})
    (alone,) = task_part(told(results, store), TASK, perfect, "ce")["risk"]
    assert _highest(alone) == 0.01
    (panel, _) = part["reliability"]
    assert (panel.title, panel.text) == ("ce", "ECE 4.00 %, estimated true error 1.23 %")


# Studies


def test_a_report_counts_the_trials_of_a_search_in_words(journal, tmp_path):
    journal.start(spec={"search": {"objective": "nll"}})
    study = journal.open("ce", trials=5)
    keys = [journal.trial(study, number, 0.2 - number / 10) for number in range(3)]
    journal.finish(journal.begin(study, 3), status="failed")
    journal.finish(journal.begin(study, 4), status="pruned")
    journal.begin(study, 5)
    journal.close(study, keys[2])
    one = journal.open("ls", trials=1)
    journal.trial(one, 0, 0.1)
    other = journal.open("ce", task="other")
    unscored = journal.begin(other, 0)
    journal.finish(unscored)
    journal.close(other, unscored)
    first, second, third = study_parts(gathered(tmp_path).history)
    assert (first["name"], third["name"]) == (f"ce on {TASK}", "ce on other")
    assert first["text"] == (
        "6 trials (3 finished, 1 failed, 1 pruned, 1 running); chosen: number 2, objective 0.0000"
    )
    assert (second["text"], third["text"]) == ("1 trial", "1 trial")
    assert (first["left"], first["importance"]) == (0, [])


def test_the_most_important_parameter_comes_first(journal, tmp_path, monkeypatch):
    journal.start()
    journal.trial(journal.open("ce"), 0, 0.1)
    shares = {"a": 0.1, "b": 0.7, "c": 0.2}
    monkeypatch.setattr("orchestrator.view._studies.importance", lambda *_: shares)
    (part,) = study_parts(gathered(tmp_path).history)
    assert part["importance"] == [("b", 0.7), ("c", 0.2), ("a", 0.1)]
    monkeypatch.setattr("orchestrator.view._studies.MOST_STUDIES", 0)
    assert study_parts(gathered(tmp_path).history) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 20], FloatDistribution(1.0, 20.0)),
        ([0.01, 1.0, 0.5], FloatDistribution(0.01, 1.0, log=True)),
        (["b", "a", "b"], CategoricalDistribution(["a", "b"])),
        ([True, False], CategoricalDistribution([False, True])),
        ([0.5, "a"], CategoricalDistribution([0.5, "a"])),
    ],
)
def test_importance_is_of_the_range_that_was_tried(values, expected):
    assert distribution(values) == expected


def test_a_page_shows_the_best_curves_only(journal, tmp_path):
    journal.start()
    study = journal.open("macal", trials=20)
    for number in range(20):
        gamma = {"macal": {"gamma": 0.5 + number / 100}}
        key = journal.begin(study, number, configuration=gamma)
        for step in range(2):
            metrics = {"val_ece": 0.1, "val_acc": 0.9, "q": 0.5, "spared": 0.7}
            journal.write("epoch", key=key, step=step, metrics=metrics)
        journal.finish(key, val_ece=0.1)
        if number < 19:  # The last one has curves, but no objective: it counts as the worst.
            journal.score(key, abs(number - 10) / 100)
    chosen = journal.key(study, 0)
    journal.close(study, chosen, finished=20)
    history = gathered(tmp_path).history
    (part,) = study_parts(history)
    assert (part["name"], part["left"]) == ("macal", 4)
    assert part["text"] == "20 trials; chosen: number 0, objective 10.00 %"
    drawn = [row["trial"] for row in rows_of(part["curves"][0], "trial")]
    assert axes_of(part["curves"][2]) == ["epoch", "spared samples"]
    assert rows_of(part["curves"][2], "trial")[0]["value"] == [0.7, 0.7]
    # The chosen one is drawn last, above the others; of those the best ones stay.
    kept = sorted(range(1, 20), key=lambda number: (abs(number - 10), number))[:15]
    assert drawn == [*reversed(kept), 0]
    (figure,) = retention_figures(history)
    assert figure.title == figure.label == "macal, gamma 0.5 to 0.67"
    assert layer_of(figure, "trial")["encoding"]["y"]["scale"]["domain"] == [0, 1.05]
    assert axes_of(figure) == ["epoch", "retention probability q"]
