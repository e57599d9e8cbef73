import inspect

import numpy as np
import pytest
import torch

from orchestrator.statistics import (
    BOOTSTRAPPED,
    _resampled,
    arena,
    compare,
    judge_claim,
    paired_bootstrap,
    search_gains,
)
from orchestrator.statistics._bootstrap import _resample_counts
from trainables.metrics import calibration_report

ROWS = 120
LABELS = torch.arange(ROWS) % 4


def resampled_by_loop(log_probs, metric, draws, seed, numbers=None):
    """The metric of each resample, from copied rows given to the report."""
    found = []
    own = torch.arange(ROWS) if numbers is None else numbers
    for counts in _resample_counts(ROWS, draws, seed):
        rows = np.repeat(np.arange(len(own)), counts[own].numpy())
        report = calibration_report(logits=log_probs[rows], labels=LABELS[own][rows])
        found.append(report[metric])
    return np.array(found)


@pytest.mark.full
@pytest.mark.parametrize(
    ("metric", "block"),
    [*((metric, 7) for metric in (*BOOTSTRAPPED, "mce", "cwaece")), ("cwece", 45)],
)
def test_the_bootstrap_equals_a_loop_that_copies_rows(made_up, metric, block, monkeypatch):
    # A few resamples at once, and one class at once or three of the four.
    monkeypatch.setattr(_resampled, "BLOCK", block * ROWS)
    seeds = {
        "ce": [made_up(LABELS, 0), made_up(LABELS, 1)],
        # Confidences of which many are equal.
        "ls": [made_up(LABELS, seed, 0.4).mul(4).round() / 4 for seed in (2, 3, 4)],
    }
    done = []
    found = paired_bootstrap(
        seeds, LABELS, metric, baseline="ce", draws=50, seed=3, level=0.8, done=done.append
    )
    loops = {
        recipe: np.mean([resampled_by_loop(one, metric, 50, 3) for one in tables], axis=0)
        for recipe, tables in seeds.items()
    }
    values = {
        recipe: np.mean([calibration_report(logits=t, labels=LABELS)[metric] for t in tables])
        for recipe, tables in seeds.items()
    }
    gap, draws = values["ls"] - values["ce"], loops["ls"] - loops["ce"]
    centre = 2 * gap - draws.mean()
    reach = np.quantile(np.abs(draws - centre), 0.8)
    assert done == ["ce", "ls"]
    assert found.values == pytest.approx(values, abs=1e-6)
    assert found.differences["ls"].value == pytest.approx(gap, abs=1e-6)
    assert found.differences["ls"].low == pytest.approx(centre - reach, abs=1e-5)
    assert found.differences["ls"].high == pytest.approx(centre + reach, abs=1e-5)
    assert (found.rows, found.draws, found.seeds) == (ROWS, 50, {"ce": 2, "ls": 3})


@pytest.mark.parametrize("metric", ["acc", "aece"])
def test_rows_of_a_file_are_drawn_where_each_seed_has_its_own(made_up, metric):
    """Two seeds share 35 of the 80 and 75 rows that they were tested on, in orders of their own."""
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    numbers = [order[:80], order[45:].flip(0)]
    tables = {
        recipe: [made_up(LABELS[own], seed, sharpness) for seed, own in enumerate(numbers)]
        for recipe, sharpness in (("ce", 1.0), ("ls", 0.4))
    }
    labels = [LABELS[own] for own in numbers]
    options = {"baseline": "ce", "draws": 30, "seed": 5, "level": 0.9}
    found = paired_bootstrap(tables, labels, metric, numbers=numbers, **options)
    loops = {
        recipe: np.mean(
            [
                resampled_by_loop(table, metric, 30, 5, own)
                for table, own in zip(seeds, numbers, strict=True)
            ],
            axis=0,
        )
        for recipe, seeds in tables.items()
    }
    gap, draws = found.differences["ls"].value, loops["ls"] - loops["ce"]
    centre = 2 * gap - draws.mean()
    reach = np.quantile(np.abs(draws - centre), 0.9)
    assert found.differences["ls"].low == pytest.approx(centre - reach, abs=1e-5)
    assert found.differences["ls"].high == pytest.approx(centre + reach, abs=1e-5)
    assert (found.rows, found.drawn) == (80, "80 test rows")


def test_groups_are_drawn_as_a_whole(made_up):
    """Copies of a row in one group say no more than the row, of every seed."""
    tables = {"ce": [made_up(LABELS, 0), made_up(LABELS, 1)], "ls": [made_up(LABELS, 2, 0.4)]}
    alone = paired_bootstrap(tables, LABELS, baseline="ce", draws=50)
    copied = {
        recipe: [table.repeat_interleave(5, 0) for table in tables[recipe]] for recipe in tables
    }
    # Numbers of images need not follow each other.
    groups = (7 * torch.arange(ROWS) + 3).repeat_interleave(5)
    labels = LABELS.repeat_interleave(5)
    found = paired_bootstrap(copied, labels, baseline="ce", draws=50, groups=groups)
    assert (found.rows, found.groups, alone.groups) == (5 * ROWS, ROWS, 0)
    assert found.drawn == "600 pixels of 120 test images, drawn as whole images"
    assert found.values == pytest.approx(alone.values, abs=1e-6)
    ours, expected = found.differences["ls"], alone.differences["ls"]
    assert (ours.low, ours.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    rows = paired_bootstrap(copied, labels, baseline="ce", draws=50).differences["ls"]
    assert rows.high - rows.low < 0.6 * (ours.high - ours.low)


def test_equal_confidences_share_a_bin_of_equal_mass():
    coarse = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4]]).log()[torch.arange(ROWS) % 3]
    fine = torch.tensor([[0.8, 0.2]]).log().expand(ROWS, 2)
    labels = (torch.arange(ROWS) % 7 == 0).long()
    found = paired_bootstrap({"a": [coarse], "b": [fine]}, labels, "aece", baseline="b", draws=5)
    for recipe, table in (("a", coarse), ("b", fine)):
        expected = calibration_report(logits=table, labels=labels)["aece"]
        assert found.values[recipe] == pytest.approx(expected, abs=1e-6)


def test_every_resample_has_as_many_rows_and_depends_on_the_seed():
    counts = _resample_counts(30, 200, 0)
    assert counts.sum(1).tolist() == [30] * 200
    assert counts.double().mean(0).sub(1).abs().max() < 0.4
    assert not torch.equal(counts, _resample_counts(30, 200, 1))


def world(rng, gap):
    """Two classes whose first is right less often than its confidence says, by ``gap``."""
    confidence = rng.beta(8, 1.5, 500).clip(0.5, 0.9999)
    wrong = rng.random(500) > confidence - gap
    logits = np.log(np.stack([confidence, 1 - confidence], axis=1))
    return torch.from_numpy(logits), wrong


@pytest.mark.full
@pytest.mark.parametrize("metric", ["ece", "acc"])
def test_a_bootstrap_interval_covers_a_known_difference_at_the_nominal_rate(metric):
    """Labels are all 0 in both, so that one recipe's errors are rows where the classes swap."""
    covered, repeats = 0, 150
    known = {"ece": 0.15 - 0.05, "acc": -0.1}
    rng = np.random.default_rng(0)
    labels = torch.zeros(500, dtype=torch.int64)
    for repeat in range(repeats):
        tables = {}
        for recipe, gap in (("bad", 0.15), ("good", 0.05)):
            logits, wrong = world(rng, gap)
            logits[torch.from_numpy(wrong)] = logits[torch.from_numpy(wrong)].flip(1)
            tables[recipe] = [logits]
        found = paired_bootstrap(
            tables, labels, metric, baseline="good", draws=300, seed=repeat
        ).differences["bad"]
        covered += found.low <= known[metric] <= found.high
    # 95% of 150 with a standard deviation of 1.8 points: far from what half the width would give.
    assert 0.89 <= covered / repeats <= 1.0
    assert found.high - found.low < 4.5 * spread(metric)


def spread(metric):
    """Standard deviation of a difference over fresh test sets of 500 rows, from formulas."""
    rng = np.random.default_rng(7)
    values = []
    for _ in range(100):
        pair = []
        for gap in (0.15, 0.05):
            logits, wrong = world(rng, gap)
            labels = torch.from_numpy(wrong.astype(np.int64))
            pair.append(calibration_report(logits=logits, labels=labels)[metric])
        values.append(pair[0] - pair[1])
    return np.std(values)


def test_a_recipe_does_not_differ_from_its_copy(made_up):
    table = [made_up(LABELS, 0)]
    found = paired_bootstrap({"ce": table, "ls": table}, LABELS, baseline="ce", draws=20)
    gap = found.differences["ls"]
    assert (gap.value, gap.low, gap.high, gap.excludes_zero) == (0, 0, 0, False)


def test_the_default_number_of_resamples():
    asked = (paired_bootstrap, compare, judge_claim, search_gains, arena)
    known = [inspect.signature(one).parameters for one in asked]
    assert [own["draws"].default for own in known] == [2000, 2000, 2000, 500, 1000]
    assert {own["seed"].default for own in known} == {0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"metric": "auroc"},
            "metric='auroc' is not one of acc, nll, brier, .*, smooth_ece, aurc, .*, l2_error",
        ),
        ({"baseline": "ls"}, "baseline='ls' is not one of ce"),
        ({"draws": 0}, r"draws=0 is outside \[1, inf\)"),
        ({"predictions": {"ce": []}}, "no predictions of ce"),
        (
            {"predictions": {"ce": [torch.zeros(ROWS, 2), torch.zeros(ROWS)]}},
            r"predictions of ce have shape \(120,\); expected \(120, K\)",
        ),
        ({"labels": LABELS[1:]}, r"predictions of ce have shape \(120, 4\); expected \(119, K\)"),
    ],
)
def test_arguments_are_checked(made_up, wrong, message):
    arguments = {"predictions": {"ce": [made_up(LABELS, 0)]}, "labels": LABELS, "baseline": "ce"}
    with pytest.raises(ValueError, match=f"{message}$"):
        paired_bootstrap(**{**arguments, **wrong})
