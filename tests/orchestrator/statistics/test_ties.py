import csv
import io
import math
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch

from orchestrator.statistics import Contrast, Need, contrast, letters, ties
from orchestrator.statistics._bootstrap import Measured
from orchestrator.statistics._compare import Board
from orchestrator.statistics._contrast import moderated
from orchestrator.statistics._ties import rows_needed, seeds_needed


def figures(means, seeds, between=1.0, shared=1.0, own=1.0, draws=2000, seed=0):
    """Return recipes whose seeds and rows vary by what is told (standard deviations)."""
    rng = np.random.default_rng(seed)
    found = {}
    for place, mean in enumerate(means):
        values = mean + between * rng.normal(size=seeds)
        rows = shared * rng.normal(size=draws) + own * rng.normal(size=(seeds, draws))
        tables = torch.from_numpy(values), torch.from_numpy(values[:, None] + rows)
        found[f"r{place}"] = Measured(*tables)
    return found


def board(found, metric="nll", floors=None):
    return Board("t", metric, found, floors or {}, {}, 1000, 4)


@pytest.mark.parametrize("seed", range(5))
def test_two_names_share_a_letter_exactly_if_alike(seed):
    rng = np.random.default_rng(seed)
    names = [f"r{n}" for n in range(9)]
    differing = {frozenset(p) for p in combinations(names, 2) if rng.random() < seed / 4}
    found = letters(names, differing)
    assert found["r0"][0] == "a"
    for pair in combinations(names, 2):
        shared = set(found[pair[0]]) & set(found[pair[1]])
        assert bool(shared) == (frozenset(pair) not in differing)


def test_a_contrast_splits_the_variance_of_seeds_and_rows():
    found = figures((3.0, 1.0), 400, between=2.0, shared=0.5, own=1.5)
    gap = contrast(found["r0"], found["r1"])
    assert gap.value == pytest.approx(2.0, abs=0.5)
    assert (gap.seeds, gap.freedom) == (400, 399)
    assert gap.between == pytest.approx(2 * 4.0, rel=0.2)
    assert gap.shared == pytest.approx(2 * 0.25, rel=0.15)
    assert gap.own == pytest.approx(2 * 2.25, rel=0.15)
    assert gap.error == pytest.approx(math.sqrt(8.0 / 400 + 0.5), rel=0.1)
    alone = contrast(*(Measured(own.values[:1], own.draws[:1]) for own in found.values()))
    assert (alone.between, alone.freedom, alone.error**2) == pytest.approx(
        (0.0, math.inf, 5.0), rel=0.1
    )


def test_the_p_value_is_that_of_students_t():
    gap = Contrast(2.0, 2.0, 3, between=0.75, shared=0.75, own=0.0, freedom=2)
    assert gap.error == 1.0
    assert gap.p_value() == pytest.approx(0.183503, abs=1e-6)
    assert gap.p_value(at=1.0) == pytest.approx(0.422650, abs=1e-6)
    ends = gap.interval(0.95)
    assert (ends.low, ends.high) == pytest.approx((2 - 4.302653, 2 + 4.302653), abs=1e-5)


def test_variances_of_few_seeds_borrow_from_each_other():
    rng = np.random.default_rng(0)
    gaps = [
        Contrast(0.0, 0.0, 3, between=float(own), shared=0.0, own=0.0, freedom=2)
        for own in rng.chisquare(2, 300) / 2
    ]
    found = moderated(gaps, 25)
    spread = [np.std([own.between for own in each]) for each in (gaps, found)]
    assert spread[1] < 0.3 * spread[0]
    assert np.mean([own.between for own in found]) == pytest.approx(1.0, abs=0.15)
    assert all(2 < own.freedom <= 48 for own in found)
    assert moderated(gaps[:2], 3) == gaps[:2]


def test_different_recipes_share_no_group():
    found = ties(board(figures((0.0, 0.0, 30.0, 30.0, 60.0), 4)))
    assert list(found.letters) == sorted(found.values, key=found.values.get)
    assert [found.letters[f"r{n}"] for n in range(5)] == ["a", "a", "b", "b", "c"]
    assert found.seeds == 4
    assert {found.need.first, found.need.second} == {"r0", "r1"}
    best = ties(board(figures((0.0, 30.0, 60.0), 4), metric="acc"))
    assert (best.letters["r2"], best.need) == ("a", None)


def test_recipes_inside_the_noise_floor_are_not_separated():
    gaps = figures((0.0, 10.0), 1, between=0.0, shared=0.01, own=0.01)
    assert set(ties(board(gaps, "ece")).letters.values()) == {"a", "b"}
    floors = {"r0": 0.5, "r1": 11.0}
    found = ties(board(gaps, "ece", floors))
    assert set(found.letters.values()) == {"a"}
    assert found.need.seeds is None
    assert found.need.rows[0] == pytest.approx(1000 * (1.1**2 - 1), rel=0.02)


@pytest.mark.parametrize("size", [0.8, 1.5])
def test_the_needed_seeds_and_rows_give_a_power_of_80_percent(size):
    one = Contrast(size, size, 4, between=1.2, shared=0.02, own=0.2, freedom=60)
    seeds, share = seeds_needed(one, size, 0.01), rows_needed(one, size, 0.01)
    whole = replace(one, seeds=seeds, freedom=60 * (seeds - 1) / 3)
    assert power(whole, size) == pytest.approx(0.8, abs=0.06)
    assert seeds > 4
    assert share is None, "four seeds differ too much, whatever the rows"
    rowed = Contrast(size, size, 4, between=0.3, shared=0.5, own=0.2, freedom=60)
    share = rows_needed(rowed, size, 0.01)
    more = replace(rowed, between=0.1 + 0.2 / share, shared=0.5 / share, own=0.2 / share)
    assert power(more, size) == pytest.approx(0.8, abs=0.06)
    assert seeds_needed(rowed, 0.8, 0.01) is None, "these rows alone hide it from any seeds"


def power(own, size):
    rng = np.random.default_rng(0)
    drawn = size + own.error * rng.standard_t(own.freedom, 2000)
    return np.mean([replace(own, centre=float(gap)).p_value() <= 0.01 for gap in drawn])


def test_a_certain_number_of_seeds_is_printed_without_a_range():
    pair = ("a", "b", 0.01)
    text = Need(*pair, seeds=(5, 7), rows=(1200, 4000)).text
    assert text == ("a and b: to separate them, add about 6 seeds or 1,200 to 4,000 test rows")
    assert Need(*pair, None, None).text.endswith("nor more test rows alone separate them")


LABELS = torch.arange(1500) % 4


@pytest.fixture
def table(command_on, evaluated, made_up):
    """Return a function that shows a table of recipes of which two are alike."""
    results = [
        evaluated(
            recipe,
            [made_up(LABELS, 5 * place + seed, sharpness) for seed in range(4)],
            LABELS,
            test=({"acc": 0.7, "nll": 0.1 * sharpness},) * 4,
        )
        for place, (recipe, sharpness) in enumerate((("ce", 9.0), ("ls", 1.5), ("ls+ts", 1.5)))
    ]
    return partial(command_on(results), "table", "s", "--show", "ties", "--metrics")


def test_a_table_marks_recipes_that_do_not_differ_significantly(table):
    code, out, _ = table("nll,ece_floor", "--format", "markdown")
    assert code == 0
    rows = {line.split("|")[1].strip(): line for line in out.splitlines() if line.startswith("|")}
    assert [rows[name].split("|")[2].strip()[-1] for name in ("ls", "ls+ts", "ce")] == [*"aab"]
    assert "recipes that share a letter cannot be told apart on the same task" in out
    assert "; seeds and test rows vary)" in out
    assert "NLL on digits/convnet/digits: ls" in out
    _, out, _ = table("nll", "--format", "csv")
    assert [row["nll_group"] for row in csv.DictReader(io.StringIO(out))] == ["b", "a", "a"]


def test_ties_need_a_metric_that_can_be_resampled(table):
    code, _, err = table("seconds")
    assert code == 2
    assert err.startswith("calsweep: --show ties: no column of the table is one of acc, nll")
