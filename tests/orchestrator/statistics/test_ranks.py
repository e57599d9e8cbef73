from dataclasses import replace
from itertools import combinations
from operator import itemgetter

import numpy as np
import pytest

from orchestrator.statistics import (
    PairTest,
    RankComparison,
    block_scores,
    critical_difference_diagram,
    holm,
    rank_comparison,
)
from orchestrator.storage.results import StudyResult
from tests.charts import check_chart, layer_of, rows_of
from tests.trainables.data.small_data import refusal
from trainables.common.errors import InputError


def scores_of(table):
    return {f"r{i}": dict(enumerate(column)) for i, column in enumerate(np.transpose(table))}


def made_up(blocks, recipes, step=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return scores_of(step * np.arange(recipes) + rng.normal(size=(blocks, recipes)))


def test_holm_by_hand():
    divisors, corrected = holm([0.01, 0.04, 0.03])
    assert divisors.tolist() == [3, 1, 2]
    assert corrected.tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6])[1].tolist() == [1.0, 1.0]
    assert holm([])[1].tolist() == []


def test_holm_ignores_unknown_p_values():
    divisors, corrected = holm([0.04, 0.001, 0.013, np.nan, 0.03])
    assert divisors.tolist() == [1, 4, 3, 1, 2]
    assert corrected.tolist() == pytest.approx([0.06, 0.004, 0.039, np.nan, 0.06], nan_ok=True)


def test_holm_keeps_the_rows_of_a_batch_apart():
    chances = np.random.default_rng(0).uniform(0, 0.1, (50, 6))
    together = holm(chances)[1]
    assert together.tolist() == [holm(row)[1].tolist() for row in chances]
    assert 0 < (together <= 0.2).sum() < together.size


# By statsmodels 0.15 (multipletests, method holm) and scikit-posthocs 0.17.1 (posthoc_wilcoxon
# with p_adjust holm) on ``made_up(14, 4, 0.7)``.
PEER = {
    ("r0", "r1"): 0.00146484375,
    ("r0", "r2"): 0.00341796875,
    ("r0", "r3"): 0.0018310546875,
    ("r1", "r2"): 0.10400390625,
    ("r1", "r3"): 0.005126953125,
    ("r2", "r3"): 0.005126953125,
}


def found_by_pair(comparison):
    return {frozenset((pair.first, pair.second)): pair.p for pair in comparison.pairs}


def test_pairs_agree_with_a_peer():
    found = rank_comparison(made_up(14, 4, 0.7))
    assert found_by_pair(found) == {
        frozenset(names): pytest.approx(p, rel=1e-6) for names, p in PEER.items()
    }


def test_ranks_and_ties_by_hand():
    found = rank_comparison(scores_of([[1, 2, 3], [2, 2, 1], [1, 3, 2]]))
    assert found.ranks == pytest.approx({"r0": 4.5 / 3, "r2": 2.0, "r1": 7.5 / 3})
    assert list(found.ranks) == ["r0", "r2", "r1"]
    assert list(rank_comparison(scores_of([[1, 2, 3]]), higher=True).ranks) == ["r2", "r1", "r0"]
    assert [(p.first, p.second) for p in found.pairs] == [("r0", "r2"), ("r0", "r1"), ("r2", "r1")]
    controlled = rank_comparison(scores_of([[1, 2, 3], [2, 2, 1], [1, 3, 2]]), control="r2")
    assert [(p.first, p.second) for p in controlled.pairs] == [("r0", "r2"), ("r2", "r1")]
    assert (found.blocks, controlled.ranks) == (3, found.ranks)


def test_blocks_are_matched_by_name_in_whatever_order_they_come():
    scores = made_up(14, 4, 0.3)
    turned = {**scores, "r1": dict(reversed(scores["r1"].items()))}
    assert rank_comparison(turned) == rank_comparison(scores)


@pytest.mark.parametrize(
    ("blocks", "recipes", "control", "testable"),
    [
        (5, 2, "", False),
        (6, 2, "", True),
        (9, 14, "r0", False),
        (10, 14, "r0", True),
        (11, 14, "", False),
        (12, 14, "", True),
    ],
)
def test_too_few_blocks_are_not_testable(blocks, recipes, control, testable):
    found = rank_comparison(made_up(blocks, recipes, 50.0), control=control)
    assert found.testable is testable
    best = found.pairs[0]
    # All blocks agree, so whatever could be significant is.
    assert best.differs is testable
    assert (best.p is None) is not testable


@pytest.mark.parametrize(("differing", "p"), [(3, None), (5, None), (6, 2 / 2**6)])
def test_a_pair_that_is_equal_nearly_everywhere_is_not_testable(differing, p):
    scores = made_up(12, 2, 30.0)
    scores["r1"] = {**scores["r0"], **dict.fromkeys(range(differing), 9.0)}
    assert found_by_pair(rank_comparison(scores)) == {frozenset(("r0", "r1")): p}


def test_blocks_with_equal_scores_count_in_the_signed_rank_test():
    scores = scores_of(np.outer(np.arange(7), [1.0, 2.0, 3.0]))  # All are equal on the first block.
    assert {pair.p for pair in rank_comparison(scores).pairs} == {3 * 2 / 2**6}


def test_friedman_and_the_critical_difference():
    # Demsar (2006), table 6: 4 recipes over 14 data sets, CD 1.25.
    found = rank_comparison(made_up(14, 4))
    assert found.critical_difference == pytest.approx(1.25, abs=0.005)
    assert found.friedman < 1e-4
    assert rank_comparison(made_up(14, 4, 0.0)).friedman > 0.05
    few = rank_comparison(made_up(1, 4))
    assert (few.friedman, few.critical_difference) == (None, None)
    same = rank_comparison(scores_of(np.ones((14, 4))))
    assert (same.friedman, same.testable) == (None, False)


@pytest.mark.parametrize(
    ("blocks", "recipes", "testable"),
    [(2, 4, False), (3, 4, True), (2, 3, False), (3, 3, True), (30, 2, False)],
)
def test_friedmans_test_needs_three_recipes_and_some_blocks(blocks, recipes, testable):
    """Of 3 recipes that 3 blocks rank alike the statistic is 6, with p = exp(-3)."""
    table = np.tile(np.arange(recipes), (blocks, 1))
    found = rank_comparison(scores_of(table))
    assert (found.friedman is not None) == testable
    assert (found.critical_difference is not None) == testable
    if (blocks, recipes) == (3, 3):
        assert found.friedman == pytest.approx(np.exp(-3))
        # Demsar (2006), table 5: q of 3 recipes is 2.343.
        expected = 2.343 * np.sqrt(3 * 4 / (6 * 3))
        assert found.critical_difference == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("alike", "cliques"),
    [
        ("ab bc", ["ab", "bc"]),
        ("ab ac bc", ["abc"]),
        ("ab ac bc bd cd", ["abc", "bcd"]),
        ("ac bd", []),
        ("cd", ["cd"]),
        ("ab ac ad bc bd cd", ["abcd"]),
    ],
)
def test_cliques_are_the_longest_runs_of_which_no_two_differ(alike, cliques):
    pairs = tuple(
        PairTest(*pair, 0.06 if "".join(pair) in alike.split() else 0.05)
        for pair in combinations("abcd", 2)
    )
    ranks = dict(zip("abcd", (1.0, 2.0, 3.0, 4.0), strict=True))
    found = RankComparison(ranks, 9, 0.01, 1.0, pairs).cliques()
    assert ["".join(clique) for clique in found] == cliques


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": {0: 1.0}}, "1 recipes to rank; expected at least 2"),
        ({"a": {0: 1.0}, "b": {1: 1.0}}, "b has 1 blocks; expected the same for all, at least 1"),
        ({"a": {0: 1.0}, "b": {0: float("nan")}}, "a score of b is not finite"),
        ({"a": {}, "b": {}}, "a has 0 blocks; expected the same for all, at least 1"),
    ],
)
def test_scores_are_checked(wrong, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        rank_comparison(wrong)
    with pytest.raises(ValueError, match=r"^control='x' is not one of a, b$"):
        rank_comparison({"a": {0: 1.0}, "b": {0: 2.0}}, control="x")


def test_the_diagram_shows_every_recipe_and_says_if_differences_are_not_testable():
    few, many = rank_comparison(made_up(3, 5)), rank_comparison(made_up(14, 5))
    told = "blocks: 3; too few to test differences (not testable)"
    for found, words in ((few, told), (many, "that do not differ")):
        chart = critical_difference_diagram(found, "x")
        assert bool(rows_of(chart, "clique")) == found.testable
        assert {row["name"]: row["rank"] for row in rows_of(chart, "stem")} == found.ranks
        assert words in chart.text


def test_the_diagram_shows_each_rank_at_its_place():
    """Names of the better half are on the left, the others right; bars join what is alike."""
    ranks = dict(zip("abcde", (1.2, 1.9, 3.0, 4.3, 4.6), strict=True))
    alike = {("a", "b"), ("c", "d"), ("d", "e"), ("c", "e")}
    pairs = tuple(
        PairTest(*pair, 0.5 if pair in alike else 0.001) for pair in combinations(ranks, 2)
    )
    chart = critical_difference_diagram(RankComparison(ranks, 9, 0.01, 1.0, pairs), "title")
    check_chart(chart)
    assert (chart.title, chart.label) == (
        "title",
        "title: critical-difference diagram of average ranks",
    )
    assert chart.text == (
        "blocks: 9; bars join recipes that do not differ (Wilcoxon's test with Holm's correction)"
    )
    # Names of five recipes are 0.06 x 4 from the scale, inner ranks lower: no lines cross.
    left, right = (
        [*map(itemgetter("text", "edge", "height"), rows_of(chart, side))]
        for side in ("left", "right")
    )
    assert left == [
        (f"{name}  {ranks[name]:.2f}", 0.76, 47 + 20 * k) for k, name in enumerate("abc")
    ]
    assert right == [
        (f"{ranks[name]:.2f}  {name}", 5.24, 47 + 20 * k) for k, name in enumerate("ed")
    ]
    assert [*map(itemgetter("rank", "end"), rows_of(chart, "clique"))] == [(1.2, 1.9), (3.0, 4.6)]
    heights = [row["height"] for row in rows_of(chart, "clique")]
    assert heights == [9, 18]
    assert rows_of(chart, "scale") == [{"rank": 1, "end": 5}]
    assert layer_of(chart, "scale")["encoding"]["x"]["title"] == "average rank, 1 is best"
    one = tuple(replace(pair, p=0.001) if pair.first == "a" else pair for pair in pairs)
    chart = critical_difference_diagram(RankComparison(ranks, 9, 0.01, 1.0, one))
    assert [row["height"] for row in rows_of(chart, "left")] == [38, 58, 78]  # For one bar.


@pytest.mark.parametrize(("count", "step"), [(23, 1), (24, 2), (36, 3)])
def test_the_axis_of_many_ranks_labels_only_some(count, step):
    names = [f"r{number}" for number in range(count)]
    ranks = {name: 1.0 + place for place, name in enumerate(names)}
    pairs = tuple(PairTest(*pair, None) for pair in combinations(names, 2))
    chart = critical_difference_diagram(RankComparison(ranks, 2, None, None, pairs))
    values = layer_of(chart, "scale")["encoding"]["x"]["axis"]["values"]
    assert values == list(range(1, count + 1, step))
    assert [row["name"] for row in rows_of(chart, "left")] == names[: (count + 1) // 2]


def test_the_diagram_needs_all_pairs():
    with pytest.raises(ValueError, match="2 pairs of 3 recipes; expected all"):
        critical_difference_diagram(rank_comparison(made_up(3, 3), control="r0"))


def study(recipe, dataset, *eces, model="convnet", **fields):
    fields = {"status": "finished", "sweep": "s", "task": f"{dataset}/{model}/p", **fields}
    test = tuple({"ece": value} for value in eces)
    return StudyResult(recipe=recipe, dataset=dataset, model=model, test=test, **fields)


def test_block_scores_are_means_over_seeds_and_name_incomplete_recipes():
    results = [
        study("ce", "digits", 0.1, 0.3),
        study("ls", "digits", 0.2),
        study("mbls", "digits", 0.2),
        study("ce", "svhn", 0.5),
        study("ls", "svhn", 0.6),
        study("mbls", "svhn", status="failed"),
    ]
    found = block_scores(results, "ece")
    assert found.scores["ce"] == pytest.approx(
        {("digits", "convnet"): 0.2, ("svhn", "convnet"): 0.5}
    )
    assert set(found.scores) == {"ce", "ls"}
    assert found.incomplete == {"mbls": (("svhn", "convnet"),)}
    assert found.seeds == (1, 2)
    lacking = replace(results[1], test=({"ece": 0.2}, {"nll": 0.2}))
    assert block_scores([lacking, results[2]], "ece").seeds == (1, 1)


def test_only_finite_figures_of_finished_studies_are_ranked():
    results = [
        study("ce", "digits", 0.1),
        study("ls", "digits", 0.2),
        study("fl", "digits", 0.1, status="running"),
        study("dfl", "digits", 0.1, float("inf")),
        study("au", "digits"),
    ]
    found = block_scores(results, "ece")
    assert set(found.scores) == {"ce", "ls"}
    assert set(found.incomplete) == {"fl", "dfl", "au"}
    assert (found.blocks, found.unit) == (
        (("digits", "convnet"),),
        "blocks (combinations of data set and model)",
    )


def test_tasks_of_given_logits_are_blocks_of_their_own():
    results = [
        study(recipe, "one", 0.1, model="given", task=task)
        for recipe in ("given", "ts")
        for task in ("one-100", "one-200")
    ]
    found = block_scores(results, "ece")
    assert found.blocks == (("one-100", "given"), ("one-200", "given"))
    assert found.unit == "tasks of logits"
    mixed = [*results, *(study(recipe, "", 0.1, task="own") for recipe in ("given", "ts"))]
    found = block_scores(mixed, "ece")
    assert (found.blocks[-1], found.unit) == (
        ("own", "convnet"),
        "blocks (combinations of data set and model)",
    )


def test_blocks_that_cannot_be_ranked_are_one_line():
    twice = [study("ce", "digits", 0.1), study("ce", "digits", 0.1, sweep="t", task="other")]
    assert refusal(block_scores, twice, "ece") == (
        "ce on digits and convnet has two results: digits/convnet/p of s and other of t; choose one"
    )
    with pytest.raises(InputError) as refused:
        block_scores([study("ce", "digits", 0.1), study("ce", "svhn", 0.1)], "ece")
    told = (
        "1 recipe with test results (ece) for all of 2 combinations of data set and model; a "
        "ranking needs at least 2"
    )
    assert str(refused.value) == told
    pair = [study(recipe, "digits", 0.1) for recipe in ("ce", "ls")]
    lost = [study(recipe, "svhn", status="failed") for recipe in ("ce", "ls")]
    with pytest.raises(InputError, match=r"^0 recipes with test results \(ece\) for all of 2 comb"):
        block_scores([*pair, *lost], "ece")
