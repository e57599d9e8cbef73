"""Claims judged on predictions of which the truth is known."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest
import torch

import orchestrator.tracking
from orchestrator.cli import main
from orchestrator.cli._claims import FIELDS, _csv_rows, _show
from orchestrator.statistics import (
    ClaimVerdict,
    Difference,
    PairedBootstrap,
    PairVerdict,
    TaskComparison,
    _claims,
    judge_claim,
)
from orchestrator.statistics._claims import _pairs
from orchestrator.storage.results import StudyResult
from orchestrator.tables.claims import Claim

LABELS = torch.arange(2000) % 4
LOWERS = Claim(name="n", says="s", paper="p", table="t", better="*+macal", than="*")


@pytest.fixture
def study(evaluated, made_up):
    """Return a function making the study of a recipe that is the more overconfident the sharper."""

    def make(recipe, sharpness, seed=0, dataset="cifar10"):
        return evaluated(recipe, [made_up(LABELS, seed, sharpness)], LABELS, dataset=dataset)

    return make


def test_a_claim_that_holds_is_confirmed_and_its_reverse_refuted(study, artifacts):
    results = [study("ce", 4.0), study("ce+macal", 1.0), study("fl", 3.0), study("fl+macal", 1.0)]
    found = judge_claim(LOWERS, results, artifacts, draws=200)
    assert found.verdict == "confirmed"
    assert [(pair.better, pair.than) for pair in found.pairs] == [
        ("ce+macal", "ce"),
        ("fl+macal", "fl"),
    ]
    for pair in found.pairs:
        assert pair.difference.high < 0
        # Quantiles of the normal distribution: 0.8 for the power, 1 - 0.05 / 2 / 2 for two pairs.
        reach = (pair.difference.high - pair.difference.low) / 2
        assert pair.detectable == pytest.approx(reach * (1 + 0.8416 / 2.2414), rel=1e-3)
        assert pair.values[0] - pair.values[1] == pytest.approx(pair.difference.value)
    turned = LOWERS.model_copy(update={"better": "*", "than": "*+macal"})
    assert judge_claim(turned, results, artifacts, draws=200).verdict == "refuted"


def test_one_method_for_which_it_fails_refutes_a_claim_on_all(study, artifacts):
    results = [study("ce", 4.0), study("ce+macal", 1.0), study("fl", 1.0), study("fl+macal", 4.0)]
    found = judge_claim(LOWERS, results, artifacts, draws=200)
    assert [pair.verdict for pair in found.pairs] == ["confirmed", "refuted"]
    assert found.verdict == "refuted"


def test_inside_the_noise_floor_nothing_is_told(study, artifacts):
    results = [study("ce", 1.02), study("ce+macal", 1.0)]
    found = judge_claim(LOWERS, results, artifacts, draws=200)
    assert found.verdict == found.pairs[0].verdict == "not testable here"
    assert found == judge_claim(LOWERS, results, artifacts, draws=200, seed=0)


@pytest.mark.parametrize(
    ("metric", "ends", "margin", "inside", "verdict"),
    [
        ("ece", (-0.03, -0.01), 0.0, False, "confirmed"),
        ("ece", (-0.03, 0.01), 0.0, False, "not testable here"),
        ("ece", (0.01, 0.03), 0.0, False, "refuted"),
        ("ece", (-0.03, 0.0), 0.0, False, "not testable here"),
        ("ece", (0.0, 0.03), 0.0, False, "not testable here"),
        ("ece", (-0.03, -0.01), 0.0, True, "not testable here"),
        ("ece", (0.01, 0.03), 0.0, True, "not testable here"),
        ("ece", (-0.01, 0.03), 0.04, True, "confirmed"),
        ("ece", (0.01, 0.03), 0.02, True, "not testable here"),
        ("ece", (0.03, 0.05), 0.02, True, "refuted"),
        ("acc", (0.01, 0.03), 0.0, False, "confirmed"),
        ("acc", (-0.01, 0.03), 0.0, False, "not testable here"),
        ("acc", (-0.03, -0.01), 0.0, False, "refuted"),
        ("acc", (-0.01, 0.03), 0.02, False, "confirmed"),
        ("acc", (-0.03, 0.01), 0.02, False, "not testable here"),
        ("acc", (-0.05, -0.03), 0.02, False, "refuted"),
    ],
)
def test_the_whole_interval_decides(monkeypatch, metric, ends, margin, inside, verdict):
    low, high = ends
    gap = Difference((low + high) / 2, low, high)
    asked = []

    def compared(pair, store, metric, **options):
        asked.append((pair, store, metric, options))
        values = {"ce": 0.5, "ce+macal": 0.5 + gap.value}
        found = PairedBootstrap(metric, "ce", values, {"ce+macal": gap}, {}, 1, 1)
        return TaskComparison("task", found, dict.fromkeys(values, float(inside)), {})

    monkeypatch.setattr(_claims, "compare", compared)
    claim = LOWERS.model_copy(update={"metric": metric, "margin": margin})
    results = [
        StudyResult("s", "t", name, "finished", predictions=("key",)) for name in ("ce+macal", "ce")
    ]
    (pair,) = judge_claim(claim, results, "store", draws=7, seed=5).pairs
    assert asked == [
        (
            (results[0], results[1]),
            *("store", metric),
            {"baseline": "ce", "level": pytest.approx(0.95), "draws": 7, "seed": 5},
        )
    ]
    assert pair.verdict == verdict
    assert (pair.sweep, pair.task, pair.better, pair.than) == ("s", "t", "ce+macal", "ce")
    assert pair.values == (0.5 + gap.value, 0.5)
    assert pair.difference == gap


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        (["confirmed", "confirmed"], "confirmed"),
        (["confirmed", "not testable here"], "not testable here"),
        (["not testable here", "refuted"], "refuted"),
        ([], "not testable here"),
    ],
)
def test_a_claim_is_confirmed_by_all_pairs_and_refuted_by_any(pairs, verdict):
    ends = Difference(0.0, 0.0, 0.0)
    found = tuple(PairVerdict("s", "t", "a", "b", (0.0, 0.0), ends, 0.0, one) for one in pairs)
    assert ClaimVerdict(LOWERS, found).verdict == verdict


def test_pairs_are_of_one_sweep_and_task_and_have_predictions():
    def study(sweep, task, recipe, **fields):
        fields = {"status": "finished", "predictions": ("key",), "dataset": "cifar10", **fields}
        return StudyResult(sweep, task, recipe, **fields)

    results = [
        *(study("a", "one", recipe) for recipe in ("ce", "ce+macal")),
        *(study("a", "two", recipe) for recipe in ("ce", "ce+macal")),
        *(study("b", "one", recipe) for recipe in ("ce", "ce+macal")),
        *(study("b", "two", recipe) for recipe in ("ce",)),  # A pair with those of sweep a only.
        *(study("c", "one", recipe, predictions=()) for recipe in ("ce", "ce+macal")),
        *(study("d", "one", recipe, status="running") for recipe in ("ce", "ce+macal")),
        *(study("e", "one", recipe, dataset="svhn") for recipe in ("ce", "ce+macal")),
    ]
    claim = LOWERS.model_copy(update={"datasets": ("cifar*",)})
    found = [(one.sweep, one.task, one.recipe, than.recipe) for one, than in _pairs(claim, results)]
    places = [("a", "one"), ("a", "two"), ("b", "one")]
    assert found == [(*place, "ce+macal", "ce") for place in places]


@pytest.mark.parametrize(("margin", "verdict"), [(0.5, "confirmed"), (1e-4, "not testable here")])
def test_no_worse_by_a_margin_needs_the_whole_interval_below_it(study, artifacts, margin, verdict):
    results = [study("ce", 1.0, seed=1), study("ce+macal", 1.0)]
    claim = LOWERS.model_copy(update={"margin": margin})
    assert judge_claim(claim, results, artifacts, draws=200).verdict == verdict


def test_accuracy_lost_beyond_the_margin_refutes(evaluated, made_up, artifacts):
    good = made_up(LABELS, 0)
    bad = good.roll(1, dims=0)
    results = [
        evaluated("ce", [good], LABELS, dataset="d"),
        evaluated("ce+macal", [bad], LABELS, dataset="d"),
    ]
    claim = LOWERS.model_copy(update={"metric": "acc", "margin": 0.01})
    assert judge_claim(claim, results, artifacts, draws=200).verdict == "refuted"


def test_intervals_widen_with_the_number_of_pairs(study, artifacts):
    few = [study("ce", 4.0), study("ce+macal", 1.0)]
    more = [*few, *(study(f"m{n}{end}", 2.0) for n in range(9) for end in ("", "+macal"))]
    one, many = (judge_claim(LOWERS, rows, artifacts, draws=1000) for rows in (few, more))
    widths = [v.pairs[0].difference.high - v.pairs[0].difference.low for v in (one, many)]
    assert widths[1] > 1.2 * widths[0]


def test_other_data_sets_and_absent_recipes_are_not_testable(study, artifacts):
    lt = LOWERS.model_copy(update={"datasets": ("*-lt*",)})
    results = [study("ce", 4.0), study("ce+macal", 1.0)]
    for claim, rows in ((lt, results), (LOWERS, results[:1])):
        found = judge_claim(claim, rows, artifacts)
        assert (found.pairs, found.verdict) == ((), "not testable here")


@pytest.fixture
def calsweep(monkeypatch, capsys, tmp_path, study):
    """Return a function that runs a command on a sweep in which MaC-Cal helps."""
    results = [study("ce", 4.0), study("ce+macal", 1.0)]
    monkeypatch.setattr(
        orchestrator.tracking, "study_results", lambda uri, sweep: results, raising=False
    )

    def call(*arguments):
        code = main([*map(str, arguments), "--storage", str(tmp_path)])
        return code, *capsys.readouterr()

    return call


def test_the_command_says_what_holds_and_what_is_missing(calsweep):
    code, out, err = calsweep("claims", "s", "--draws", 50)
    assert (code, err) == (0, "")
    assert "(macal Table 1; macal-beats-ce): confirmed" in out
    assert "(mbls Table 1; mbls-beats-ce): not testable here" in out
    assert "no sweep here has predictions of both mbls and ce" in out
    assert "on data sets *-lt*" in out


def test_one_claim_as_csv(calsweep):
    code, out, _ = calsweep("claims", "s", "--claim", "macal-beats-ce", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert code == 0
    assert (row["claim"], row["better"], row["verdict"]) == (
        "macal-beats-ce",
        "ce+macal",
        "confirmed",
    )
    assert float(row["high"]) < 0


def test_what_is_printed_of_a_claim(capsys):
    gap = Difference(-0.0123, -0.02, 0.001)
    pair = PairVerdict("night", "a/b/c", "mbls", "ls", (0.05, 0.0623), gap, 0.015, "confirmed")
    claim = LOWERS.model_copy(update={"datasets": ("*-lt*", "x")})
    found = [ClaimVerdict(claim, (pair,)), ClaimVerdict(claim, ())]
    _show(found, markdown=True)
    title, head, _, row, none, missing, about = filter(
        str.strip, capsys.readouterr().out.splitlines()
    )
    assert title == "**s** (p t; n): confirmed"
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("night: a/b/c", "mbls 5.00", "ls 6.23", "ECE % ↓", "-1.23", "[-2.00, +0.10]"),
        *("1.50", "confirmed"),
    ]
    assert [cell.strip() for cell in head.split("|")[1:-1]] == [
        *("runs", "better", "than", "metric", "difference", "interval", "detectable", "verdict")
    ]
    assert head.split("|")[2].startswith(" better ")  # It stands left, as all do.
    assert none == "**s** (p t; n): not testable here"
    assert missing.endswith("of both *+macal and * on data sets *-lt*, x")
    assert about == (
        "intervals: 95 % for all rows of a claim together, of these networks on other test data; "
        "detectable: the smallest difference found in 80 % of cases"
    )
    rows = [dict(zip(FIELDS, row, strict=True)) for row in _csv_rows(found)]
    assert rows[0] == {
        **{"claim": "n", "claim_verdict": "confirmed", "metric": "ece", "margin": 0.0},
        **{"sweep": "night", "task": "a/b/c", "better": "mbls", "than": "ls"},
        **{"better_value": 0.05, "than_value": 0.0623, "difference": -0.0123},
        **{"low": -0.02, "high": 0.001, "detectable": 0.015, "verdict": "confirmed"},
    }
    assert {name for name, value in rows[1].items() if value is None} == {*FIELDS[4:]}
    _show([ClaimVerdict(claim.model_copy(update={"metric": "nll"}), (pair,))], markdown=False)
    title, _, _, row, *_ = filter(str.strip, capsys.readouterr().out.splitlines())
    assert title == "s (p t; n): confirmed"
    assert [*re.split(" {2,}", row.strip())][1:7] == [
        *("mbls 0.0500", "ls 0.0623", "NLL ↓", "-0.0123", "[-0.0200, +0.0010]", "0.0150")
    ]
    other = replace(pair, verdict="not testable here")
    rows = [
        dict(zip(FIELDS, row, strict=True))
        for row in _csv_rows([ClaimVerdict(claim, (pair, other))])
    ]
    assert [(row["claim_verdict"], row["verdict"]) for row in rows] == [
        ("not testable here", "confirmed"),
        ("not testable here", "not testable here"),
    ]


def test_claims_are_those_asked_for_each_once(calsweep):
    names = ["mbls-beats-ls", "macal-beats-ce"]
    words = [word for name in [*names, names[0]] for word in ("--claim", name)]
    _, out, _ = calsweep("claims", "s", "--draws", 2, "--format", "csv", *words)
    assert [row["claim"] for row in csv.DictReader(io.StringIO(out))] == names


def test_progress_is_counted_by_claims(calsweep, progress):
    steps = progress("_claims")
    names = ("macal-beats-ce", "mbls-beats-ls", "mbls-beats-ce")
    calsweep("claims", "s", "--draws", 2, *(word for name in names for word in ("--claim", name)))
    assert steps == ["judging claims", (0, 3), (1, 3), (2, 3)]


def test_an_unknown_claim_is_one_line(calsweep):
    code, out, err = calsweep("claims", "s", "--claim", "nonsense")
    assert (code, out) == (2, "")
    assert err.startswith("calsweep: --claim 'nonsense' is not one of: acls-beats-mbls")
