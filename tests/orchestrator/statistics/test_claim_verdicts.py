"""Claims judged on predictions of which the truth is known."""

from __future__ import annotations

import csv
import io

import pytest
import torch

import orchestrator.tracking
from orchestrator.cli import main
from orchestrator.statistics import judge_claim
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


def test_an_unknown_claim_is_one_line(calsweep):
    code, out, err = calsweep("claims", "s", "--claim", "nonsense")
    assert (code, out) == (2, "")
    assert err.startswith("calsweep: --claim 'nonsense' is not one of: acls-beats-mbls")
