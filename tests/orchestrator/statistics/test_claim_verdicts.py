import csv
import io
import re
from dataclasses import replace

import pytest
import torch

from orchestrator.cli._claims import FIELDS, _csv_rows, _show
from orchestrator.statistics import ClaimVerdict, Difference, PairVerdict, judge_claim
from orchestrator.statistics._claims import _pairs
from orchestrator.storage.results import StudyResult
from orchestrator.tables.claims import Claim

LABELS = torch.arange(1000) % 4
LOWERS = Claim(name="n", says="s", paper="p", table="t", better="*+macal", than="*")


@pytest.fixture
def study(evaluated, made_up):
    """Return a function making the study of a recipe that is the more overconfident the sharper."""

    def make(recipe, sharpness, seeds=range(5), dataset="digits", signal=0.0, **fields):
        sure = signal * torch.nn.functional.one_hot(LABELS, 4)
        tables = [made_up(LABELS, seed) + sure for seed in seeds]
        tables = [(sharpness * table).log_softmax(1) for table in tables]
        return evaluated(recipe, tables, LABELS, dataset=dataset, **fields)

    return make


def test_a_claim_that_holds_and_its_reverse_name_the_regime(study, artifacts):
    results = [study("ce", 8.0), study("ce+macal", 1.5), study("fl", 6.0), study("fl+macal", 1.5)]
    found = judge_claim(LOWERS, results, artifacts, draws=200)
    assert found.verdict == "holds in this regime"
    assert [(pair.better, pair.than) for pair in found.pairs] == [
        ("ce+macal", "ce"),
        ("fl+macal", "fl"),
    ]
    for pair in found.pairs:
        assert (pair.difference.high < 0, pair.p < 0.05, pair.seeds) == (True, True, 5)
        # Student's t of four degrees of freedom: both ends at 5 % for two pairs, and 0.8 for power.
        half = (pair.difference.high - pair.difference.low) / 2
        assert pair.detectable == pytest.approx(half * (3.4954 + 0.9410) / 2.7764, rel=1e-3)
        assert pair.values[0] - pair.values[1] == pytest.approx(pair.difference.value)
    turned = LOWERS.model_copy(update={"better": "*", "than": "*+macal"})
    assert judge_claim(turned, results, artifacts, draws=200).verdict == "fails in this regime"


def test_only_networks_as_good_as_the_papers_refute_it(study, artifacts):
    """MbLS's networks of CIFAR-10 are right 93.2 % of the time, these 70 %, or 100 %."""
    claim = Claim(name="n", says="s", paper="mbls", table="t", better="mbls", than="ce")
    weak = [study("mbls", 8.0, dataset="cifar10"), study("ce", 1.5, dataset="cifar10")]
    assert judge_claim(claim, weak, artifacts, draws=50).verdict == "fails in this regime"
    places = {"dataset": "cifar10", "task": "cifar10/b/c"}
    strong = [study(r, s, signal=8.0, **places) for r, s in (("mbls", 0.1), ("ce", 0.3))]
    assert judge_claim(claim, strong, artifacts, draws=50).verdict == "refuted"
    assert judge_claim(claim, weak + strong, artifacts, draws=50).verdict == "refuted"
    part = [replace(one, subset="train_limit 100") for one in strong]
    assert judge_claim(claim, part, artifacts, draws=50).verdict == "fails in this regime"


def test_one_seed_confirms_nothing(study, artifacts):
    results = [study("ce", 8.0, seeds=(0,)), study("ce+macal", 1.5, seeds=(0,))]
    (pair,) = judge_claim(LOWERS, results, artifacts, draws=200).pairs
    assert (pair.verdict, pair.seeds, pair.p) == ("not testable here", 1, 1.0)
    assert pair.difference.high < 0


@pytest.mark.parametrize("seeds", [(0,), range(3)])
def test_given_logits_are_judged_by_test_rows_and_as_these(study, artifacts, seeds):
    claim = Claim(name="n", says="s", paper="cls", table="t", better="*+ts-cls", than="*+ts")
    task = {"seeds": seeds, "model": "given", "dataset": "probs_densenet40_c10_logits"}
    worse, better = (study(name, 8.0, **task) for name in ("ts", "given"))
    found = judge_claim(claim, [worse, better, study("ts-cls", 1.5, **task)], artifacts, draws=200)
    (pair,) = found.pairs
    assert (pair.better, pair.than, pair.seeds) == ("ts-cls", "ts", len(seeds))
    assert found.verdict == pair.verdict == "holds on these logits"
    assert (pair.difference.high < 0, pair.p < 0.05) == (True, True)
    turned = claim.model_copy(update={"better": "*+ts", "than": "*+ts-cls"})
    results = [worse, study("ts-cls", 1.5, **task)]
    assert judge_claim(turned, results, artifacts, draws=200).verdict == "fails on these logits"
    near = [study("ts", 1.53, task="b", **task), study("ts-cls", 1.5, task="b", **task)]
    assert judge_claim(claim, near, artifacts, draws=200).verdict == "not testable here"


def test_a_calibrator_of_given_logits_must_keep_their_accuracy(study, evaluated, artifacts):
    claim = Claim(name="n", says="s", paper="cls", table="t", better="*+cts-cls", than="*+cts")
    task = {"seeds": (0,), "model": "given"}
    results = [study("given", 8.0, signal=8.0, **task), study("cts", 8.0, **task)]
    results.append(study("cts-cls", 1.5, **task))
    (pair,) = judge_claim(claim, results, artifacts, draws=50).pairs
    assert (pair.verdict, pair.given) == ("accuracy lost", True)


def test_the_seed_of_a_search_is_left_out(study, artifacts):
    results = [study("ce", 8.0), study("ce+macal", 1.5)]
    seen = [replace(one, searched_predictions=one.predictions[0]) for one in results]
    (plain,) = judge_claim(LOWERS, seen, artifacts, draws=50).pairs
    assert plain.seeds == 5, "nothing was searched"
    seen[1] = replace(seen[1], trials_finished=4)
    (pair,) = judge_claim(LOWERS, seen, artifacts, draws=50).pairs
    later = [replace(one, predictions=one.predictions[1:]) for one in results]
    assert (pair,) == judge_claim(LOWERS, later, artifacts, draws=50).pairs
    single = [replace(one, predictions=one.predictions[:1]) for one in seen]
    assert judge_claim(LOWERS, single, artifacts, draws=50).pairs[0].seeds == 1


@pytest.mark.parametrize("collapsed", ["fl", "fl+macal"])
def test_a_network_of_lost_accuracy_does_not_count(study, evaluated, artifacts, collapsed):
    """At chance a network that is as unsure as it is wrong would be called well calibrated."""
    shuffled = [torch.randn(len(LABELS), 4).mul(0.01).log_softmax(1) for _ in range(5)]
    sharp = {"ce": 8.0, "ce+macal": 1.5, "fl": 8.0, "fl+macal": 1.5}
    results = [study(recipe, own) for recipe, own in sharp.items() if recipe != collapsed]
    results.append(evaluated(collapsed, shuffled, LABELS, dataset="digits"))
    found = judge_claim(LOWERS, results, artifacts, draws=200)
    assert [pair.verdict for pair in found.pairs] == ["holds in this regime", "accuracy lost"]
    assert found.verdict == "holds in this regime"
    # Holm's correction is for those that count.
    (alone,) = judge_claim(LOWERS, results[:2], artifacts, draws=200).pairs
    assert found.pairs[0].p == alone.p


def test_points_lost_to_the_method_alone_count_as_lost(study, evaluated, made_up, artifacts):
    """Three of a hundred rows are wrong that the method alone has right."""
    plain = [made_up(LABELS, seed, 8.0) for seed in range(5)]
    worse = []
    for table in plain:
        right = (table.argmax(1) == LABELS).nonzero().squeeze(1)[: len(LABELS) * 3 // 100]
        flatter = (table / 5).log_softmax(1)
        flatter[right] = flatter[right].roll(1, dims=1)
        worse.append(flatter)
    results = [study("ce", 8.0), evaluated("ce+macal", worse, LABELS, dataset="digits")]
    (pair,) = judge_claim(LOWERS, results, artifacts, draws=50).pairs
    assert pair.verdict == "accuracy lost"
    assert pair.accuracies[1] - pair.accuracies[0] == pytest.approx(0.03)
    keeps = LOWERS.model_copy(update={"metric": "acc", "margin": 0.01})
    assert judge_claim(keeps, results, artifacts, draws=50).verdict == "fails in this regime"


def test_differences_inside_the_noise_floor_have_no_verdict(study, artifacts):
    results = [study("ce", 1.53), study("ce+macal", 1.5)]
    found = judge_claim(LOWERS, results, artifacts, draws=200)
    assert found.verdict == found.pairs[0].verdict == "not testable here"
    assert found == judge_claim(LOWERS, results, artifacts, draws=200, seed=0)


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [(0.5, "holds in this regime"), (1e-4, "not testable here"), (-1, "fails in this regime")],
)
def test_no_worse_by_a_margin_needs_a_difference_below_it(study, artifacts, margin, verdict):
    results = [study("ce", 1.5, seeds=range(5, 10)), study("ce+macal", 8.0 if margin < 0 else 1.5)]
    claim = LOWERS.model_copy(update={"margin": abs(margin) if margin > 0 else 0.01})
    assert judge_claim(claim, results, artifacts, draws=200).verdict == verdict


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        (["confirmed", "accuracy lost"], "confirmed"),
        (["confirmed", "fails in this regime"], "confirmed"),
        (["holds in this regime", "fails in this regime"], "fails in this regime"),
        (["holds in this regime", "not testable here"], "not testable here"),
        (["accuracy lost"], "not testable here"),
        (["confirmed", "confirmed"], "confirmed"),
        (["confirmed", "not testable here"], "not testable here"),
        (["not testable here", "refuted"], "refuted"),
        (["holds on these logits", "fails on these logits"], "fails on these logits"),
        (["holds on these logits", "holds in this regime"], "holds in this regime"),
        (["holds on these logits", "not testable here"], "not testable here"),
        ([], "not testable here"),
    ],
)
def test_a_claim_is_confirmed_by_all_pairs_and_refuted_by_any(pairs, verdict):
    ends = Difference(0.0, 0.0, 0.0)
    start = ("s", "t", "a", "b", (0.0, 0.0), (0.0, 0.0))
    found = tuple(PairVerdict(*start, ends, 1.0, 0.0, 2, one) for one in pairs)
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
    pairs = _pairs(claim, results)
    found = [(one.sweep, one.task, one.recipe, than.recipe) for one, than in pairs]
    places = [("a", "one"), ("a", "two"), ("b", "one")]
    assert found == [(*place, "ce+macal", "ce") for place in places]


@pytest.fixture
def calsweep(command_on, study):
    return command_on([study("ce", 8.0), study("ce+macal", 1.5)])


def test_compare_claims_prints_verdicts_and_missing_recipes(calsweep):
    code, out, err = calsweep("compare", "s", "--claims", "--draws", 50)
    assert (code, err) == (0, "")
    assert "(macal Table 1; macal-beats-ce): holds in this regime" in out
    assert "(mbls Table 1; mbls-beats-ce): not testable here" in out
    assert "no sweep here has predictions of both mbls and ce" in out
    assert "on data sets *-lt*" in out


def test_what_is_printed_of_a_claim(capsys, file_regression):
    """After a change that is meant, run this with ``--force-regen`` and read what differs."""
    gap = Difference(-0.0123, -0.02, 0.001)
    start = ("night", "a/b/c", "mbls", "ls", (0.05, 0.0623), (0.44, 0.512))
    pair = PairVerdict(*start, gap, 0.0314, 0.015, 3, "confirmed")
    claim = LOWERS.model_copy(update={"datasets": ("*-lt*", "x")})
    found = [ClaimVerdict(claim, (pair,)), ClaimVerdict(claim, ())]
    _show(found, markdown=True)
    _show([ClaimVerdict(claim.model_copy(update={"metric": "nll"}), (pair,))], markdown=False)
    other = replace(pair, verdict="not testable here")
    logits = replace(pair, seeds=1, verdict="holds on these logits", given=True)
    pairs = (replace(pair, seeds=1, verdict="not testable here"), logits)
    _show([ClaimVerdict(claim, pairs)], markdown=True)
    rows = [*_csv_rows(found), *_csv_rows([ClaimVerdict(claim, (pair, other))])]
    text = "".join(f"{dict(zip(FIELDS, row, strict=True))}\n" for row in rows)
    shown = re.sub(" +\n", "\n", capsys.readouterr().out)
    file_regression.check(shown + text, encoding="utf-8")


def test_claims_are_those_asked_for_each_once(calsweep):
    names = ["mbls-beats-ls", "macal-beats-ce"]
    words = [word for name in [*names, names[0]] for word in ("--claim", name)]
    _, out, _ = calsweep("compare", "s", "--claims", "--draws", 2, "--format", "csv", *words)
    assert [row["claim"] for row in csv.DictReader(io.StringIO(out))] == names


def test_progress_is_counted_by_claims(calsweep, progress):
    steps = progress("_claims")
    names = ("macal-beats-ce", "mbls-beats-ls", "mbls-beats-ce")
    calsweep(
        "compare",
        "s",
        "--claims",
        "--draws",
        2,
        *(word for name in names for word in ("--claim", name)),
    )
    assert steps == ["judging claims", (0, 3), (1, 3), (2, 3)]


def test_an_unknown_claim_is_one_line(calsweep):
    code, out, err = calsweep("compare", "s", "--claims", "--claim", "nonsense")
    assert (code, out) == (2, "")
    assert err.startswith("calsweep: --claim 'nonsense' is not one of: acls-beats-mbls")


@pytest.mark.parametrize(
    ("metric", "better", "than", "verdict"),
    [
        ("seconds", (10.0, 11.0, 10.5), (20.0, 21.0, 20.6), "holds in this regime"),
        ("seconds", (20.0, 21.0, 20.6), (10.0, 11.0, 10.5), "fails in this regime"),
        ("seconds", (10.0, 30.0, 20.0), (11.0, 28.0, 21.0), "not testable here"),
        ("auroc", (0.9, 0.91, 0.9), (0.8, 0.81, 0.805), "holds in this regime"),
        ("auroc", (0.8, 0.81, 0.805), (0.9, 0.91, 0.9), "fails in this regime"),
    ],
)
def test_seconds_and_foreign_images_are_judged_over_seeds(
    study, artifacts, metric, better, than, verdict
):
    claim = LOWERS.model_copy(update={"better": "ce+macal", "than": "ce", "metric": metric})

    def with_values(recipe, values):
        own = {"seconds": values} if metric == "seconds" else {}
        suites = [{f"ood-{name}/auroc": v for name in ("a", "b")} for v in values]
        return study(recipe, 2.0, seeds=range(3), test=tuple(suites), **own)

    results = [with_values("ce", than), with_values("ce+macal", better)]
    found = judge_claim(claim, results, artifacts, draws=20)
    (pair,) = found.pairs
    assert found.verdict == verdict
    assert pair.seeds == 3
    assert pair.values == pytest.approx((sum(better) / 3, sum(than) / 3))
    gaps = torch.tensor(better).double() - torch.tensor(than).double()
    half = 4.302653 * float(gaps.std()) / 3**0.5  # Student's t of two degrees of freedom.
    assert pair.difference.high - pair.difference.low == pytest.approx(2 * half, rel=1e-5)


def test_the_seed_of_a_search_does_not_count_for_seconds_either(study, artifacts):
    claim = LOWERS.model_copy(update={"better": "ce+macal", "than": "ce", "metric": "seconds"})
    own = {"seeds": range(3), "test": ({}, {}, {})}
    plain = study("ce", 2.0, seconds=(5.0, 20.0, 21.0), **own)
    refined = study("ce+macal", 2.0, seconds=(99.0, 10.0, 11.0), trials_finished=4, **own)
    refined = replace(refined, searched_predictions=refined.predictions[0])
    plain = replace(plain, searched_predictions=plain.predictions[0])
    (pair,) = judge_claim(claim, [plain, refined], artifacts, draws=20).pairs
    assert (pair.values, pair.seeds) == ((10.5, 20.5), 2)


def test_a_claim_of_foreign_images_needs_suites(study, artifacts):
    claim = LOWERS.model_copy(update={"better": "ce+macal", "than": "ce", "metric": "auroc"})
    results = [study("ce", 2.0), study("ce+macal", 2.0)]
    assert judge_claim(claim, results, artifacts, draws=20).pairs == ()
