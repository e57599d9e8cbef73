"""The parts of the charts: fronts, panels, intervals, importance."""

import math
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy
import torch
from optuna import logging

from orchestrator.statistics import Difference, PairedBootstrap, TaskComparison
from orchestrator.storage.ledger import Trial
from orchestrator.storage.results import StudyResult
from orchestrator.view._panels import Curves, chance, interval_bar, measure, risk_panel, widest
from orchestrator.view._scatter import Place, pareto_front, scatter
from orchestrator.view._studies import importance
from tests.charts import axes_of, check_chart, is_log, layer_of, points_of, rows_of
from trainables.common.stages import ArtifactRef
from trainables.metrics import (
    bin_spread_of_groups,
    estimated_error,
    reliability_curve,
    risk_coverage_curve,
)
from trainables.store.artifacts import ArtifactStore


def test_the_front_has_the_recipes_that_no_other_dominates():
    dice = random.Random(0)
    places = [Place(str(n), dice.randint(0, 6), dice.randint(0, 6), "train") for n in range(25)]

    def beats(q, p):
        same = (q.accuracy, q.error) == (p.accuracy, p.error)
        return q.accuracy >= p.accuracy and q.error <= p.error and not same

    expected = {p for p in places if not any(beats(q, p) for q in places)}
    front = pareto_front(places)
    assert set(front) == expected
    assert [p.error for p in front] == sorted(p.error for p in front)


def test_the_scatter_joins_its_front_and_rings_the_baseline():
    places = [
        Place("a", 90.0, 1.0, "train"),
        Place("b", 94.0, 3.0, "refine"),
        Place("c", 92.0, 2.0, "calibrate"),
        Place("d", 91.0, 2.5, "train"),
    ]
    chart = scatter(places, "d", 1.5)
    check_chart(chart)
    assert not is_log(chart, "x")
    assert chart.label == "Accuracy against ECE; on the front: a, c, b"
    assert points_of(chart, "front") == [(1, 90), (2, 92), (3, 94)]
    assert layer_of(chart, "front")["mark"]["interpolate"] == "step-after"
    assert points_of(chart, "ring") == [(2.5, 91)]
    assert points_of(chart, "mark") == [(place.error, place.accuracy) for place in places]
    assert [row["stage"] for row in rows_of(chart, "mark")] == [place.stage for place in places]
    assert [row["error"] for row in rows_of(chart, "floor")] == [1.5]
    named = [[row["recipe"] for row in rows_of(chart, side)] for side in ("above", "below")]
    assert named == [["a", "b"], ["c", "d"]]
    assert axes_of(chart) == ["ECE %, lower is better", "accuracy %"]
    for floor in (None, 0.5):
        assert layer_of(scatter(places, "d", floor), "floor") is None
    assert rows_of(scatter(places, "d", 99.0), "floor")[0]["error"] == 3


def test_each_stage_has_another_shape_and_colour_in_the_scatter():
    chart = scatter([Place("a", 90, 1, "train"), Place("b", 91, 2, "refine")], "", None)
    encoding = layer_of(chart, "mark")["encoding"]
    kinds = encoding["shape"]["scale"]["domain"]
    assert kinds == ["train", "refine", "calibrate"]
    looks = [encoding[channel]["scale"]["range"] for channel in ("shape", "color")]
    assert [len(set(own)) for own in looks] == [3, 3]


def test_a_wide_range_of_errors_has_a_logarithmic_axis():
    for most, log in ((6.0, False), (6.1, True)):
        pair = [Place("a", 90, 1.0, "train"), Place("b", 91, most, "train")]
        assert is_log(scatter(pair, "", None), "x") is log
    zero = [Place("a", 90, 0.0, "train"), Place("b", 91, 9.0, "train")]
    assert not is_log(scatter(zero, "", None), "x")


@pytest.mark.parametrize(
    ("found", "bar"),
    [
        (Difference(0.02, -0.01, 0.04), (40, 90, 70, ())),
        (Difference(0.02, -0.01, 0.09), (40, 100, 70, ("right",))),
        (Difference(-0.02, -0.09, 0.01), (0, 60, 30, ("left",))),
        (Difference(0.5, 0.4, 0.6), (100, 100, None, ("right",))),
        (Difference(0.0, -0.5, 0.6), (0, 100, 50, ("left", "right"))),
    ],
)
def test_an_interval_is_drawn_around_zero_with_arrows_where_it_does_not_fit(found, bar):
    low, high, value, cut = interval_bar(found, 0.05)
    assert (low, high, cut) == (pytest.approx(bar[0]), pytest.approx(bar[1]), bar[3])
    assert value == (None if bar[2] is None else pytest.approx(bar[2]))


@pytest.mark.parametrize(
    ("ends", "edge"),
    [
        ([(-0.01, 0.02), (-0.04, 0.01), (-0.03, 0.0)], 0.04),
        ([(-0.01, 0.01), (0.0, 0.01), (-0.5, 0.2)], 0.03),
        ([(-0.01, 0.01), (0.0, 0.0), (0.0, 0.0)], 0.01),
        ([(0.0, 0.0)], 1 / 1.05),
        ([], 1 / 1.05),
    ],
)
def test_an_interval_far_from_the_usual_does_not_decide_the_scale(ends, edge):
    gaps = {str(n): Difference(0.0, low, high) for n, (low, high) in enumerate(ends)}
    found = PairedBootstrap("ece", "ce", {}, gaps, {}, 1, 1)
    assert widest(TaskComparison("t", found, {}, {})) == pytest.approx(1.05 * edge)


def test_chance_refers_to_the_rows_of_one_seed():
    """Two seeds of the same rows: how often of 50 rows 40 to 45 are right, by plain sums."""
    probs = np.tile([[0.9, 0.1], [0.55, 0.45]], (50, 1))
    truths = np.tile([0, 1], 50)
    curve = reliability_curve(probs=np.tile(probs, (2, 1)), labels=np.tile(truths, 2))
    risk = risk_coverage_curve(probs=probs, labels=truths)
    found = chance(Curves(curve, (risk, risk), 0.0))
    chances = [math.comb(50, k) * 0.9**k * 0.1 ** (50 - k) for k in range(51)]
    sums = np.cumsum(chances)
    ends = [int(np.argmax(sums >= end)) / 50 for end in (0.025, 0.975)]
    assert [end[13] for end in found] == pytest.approx(ends)


def test_rows_that_seeds_do_not_share_evenly_are_rounded_to_whole_ones():
    # Of two rows 0, 1 and 2 are right with chances of 1, 18 and 81 %.
    reliability = SimpleNamespace(count=np.array([3]), confidence=np.array([0.9]))
    curves = SimpleNamespace(reliability=reliability, risk=(None, None), spread=None)
    assert chance(curves) == ([0.5], [1.0])
    curves.reliability.confidence[0] = 1 + 1e-12
    assert chance(curves) == ([1.0], [1.0])


def test_chance_needs_no_statistics_of_scipy_and_is_the_same(monkeypatch):
    counts, confidence = np.meshgrid(
        [0, 1, 2, 7, 50, 999, 10**6], [math.nan, 1e-15, *np.linspace(0.01, 0.99, 99), 1.0]
    )
    rows, right = np.maximum(counts, 1), np.nan_to_num(confidence)
    expected = [scipy.stats.binom.ppf(end, rows, right) / rows for end in (0.025, 0.975)]
    reliability = SimpleNamespace(count=counts, confidence=confidence)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    found = chance(SimpleNamespace(reliability=reliability, risk=(None,), spread=None))
    np.testing.assert_array_equal(found, expected)


def test_measuring_reports_each_step(tmp_path):
    store, keys = ArtifactStore(tmp_path), ("ab" * 32, "cd" * 32)
    for key in keys:
        rows = {"log_probs": torch.randn(30, 3).log_softmax(1), "labels": torch.arange(30) % 3}
        store.write(ArtifactRef("evaluate", key), {"test": rows}, {"metrics": {}})
    results = [
        StudyResult("s", "t", name, "finished", predictions=(key,))
        for name, key in zip(("ce", "ls"), keys, strict=True)
    ]
    results.append(StudyResult("s", "t", "fl", "failed", reason="NaN"))
    steps = []
    found = measure(results, store, "ce", lambda: steps.append(1))
    assert (list(found.curves), found.gains) == (["ce", "ls"], {})
    assert (len(steps), found.absent) == (2 * 3, {"fl": "failed: NaN"})
    assert [one.bootstrap.baseline for one in found.comparisons.values()] == ["ce", "ce"]
    assert list(found.comparisons) == ["acc", "ece"]
    assert measure(results, store, "fl").comparisons == {}
    pair = {"searched_predictions": keys[0], "default_predictions": keys[1], "trials_finished": 4}
    searched = [StudyResult("s", "t", "ls", "finished", predictions=keys[:1], **pair)]
    gains = measure(searched, store, "ce").gains.items()
    assert [(metric, gain.bootstrap.metric) for metric, gain in gains] == [
        ("acc",) * 2,
        ("ece",) * 2,
    ]


def test_lost_predictions_are_named_with_the_remedy_and_the_rest_is_shown(tmp_path):
    store, keys = ArtifactStore(tmp_path / "artifacts"), [name * 32 for name in ("ab", "cd", "ef")]
    for key in keys:
        rows = {"log_probs": torch.randn(30, 3).log_softmax(1), "labels": torch.arange(30) % 3}
        store.write(ArtifactRef("evaluate", key), {"test": rows}, {"metrics": {}})
    _, cut, odd = (store.path(ArtifactRef("evaluate", key)) for key in keys)
    told = f"test.safetensors has 100 bytes, not {(cut / 'test.safetensors').stat().st_size}"
    (cut / "test.safetensors").write_bytes(b"x" * 100)
    (odd / "test.safetensors").unlink()
    gone = store.path(ArtifactRef("evaluate", "12" * 32))
    ran = {"searched_predictions": keys[0], "trials_finished": 4}
    results = [
        StudyResult("s", "t", "ce", "finished", predictions=(keys[0],)),
        StudyResult("s", "t", "ls", "finished", predictions=(keys[0], keys[1])),
        StudyResult("s", "t", "fl", "finished", predictions=("12" * 32,)),
        StudyResult(
            "s", "t", "au", "finished", predictions=(keys[0],), default_predictions=keys[2], **ran
        ),
        StudyResult("s", "t", "none", "finished"),
    ]
    for _ in range(2):  # Damaged files are removed when they are found.
        found = measure(results, store, "ce")
        remedy = f"; `calsweep run --resume s --storage {tmp_path}` computes it again"
        assert found.absent["ls"] == f"{cut} is damaged ({told}){remedy}"
        assert found.absent["fl"] == f"{gone} is missing{remedy}"
        fault = "test.safetensors, listed in its manifest.json, is missing"
        assert found.ungained == {"au": f"{odd} is damaged ({fault}){remedy}"}
        assert found.absent["none"] == "no predictions on record"
        assert (list(found.curves), found.problem) == (["ce", "au"], "")
        assert list(found.comparisons["ece"].bootstrap.values) == ["ce", "au"]


def test_curves_of_pixels_are_those_of_stored_ones_and_their_chance_that_of_images(tmp_path):
    generator, store = np.random.default_rng(0), ArtifactStore(tmp_path)
    labels, images = generator.integers(0, 3, 300), np.repeat(np.arange(6), 50)
    seeds = [generator.normal(size=(300, 3)) + 2 * np.eye(3)[labels] for _ in range(2)]
    keys = ("ab" * 32, "cd" * 32)
    for key, logits in zip(keys, seeds, strict=True):
        rows = {"log_probs": logits, "labels": labels, "images": images}
        test = {name: torch.from_numpy(values) for name, values in rows.items()}
        store.write(ArtifactRef("evaluate", key), {"test": test}, {"metrics": {}})
    result = StudyResult("s", "t", "ce", "finished", predictions=keys)
    curves = measure([result], store, "ce").curves["ce"]

    logits, truths = np.concatenate(seeds), np.tile(labels, 2)
    whole = reliability_curve(logits=logits, labels=truths)
    for name in ("count", "confidence", "accuracy"):
        own, told = getattr(curves.reliability, name), getattr(whole, name)
        assert own == pytest.approx(told, nan_ok=True)
    rows = (torch.from_numpy(values) for values in (logits, truths, np.tile(images, 2)))
    spread = bin_spread_of_groups(*rows)
    boxes = np.stack(chance(curves), axis=1)
    for number in np.flatnonzero(whole.count):
        centre, reach = whole.confidence[number], 1.96 * spread[number]
        ends = [max(0.0, min(1.0, centre + side * reach)) for side in (-1, 1)]
        assert boxes[number] == pytest.approx(ends)
    for found, own in zip(curves.risk, seeds, strict=True):
        expected = risk_coverage_curve(logits=own, labels=labels)
        assert found.risk == pytest.approx(expected.risk)
        assert found.area == pytest.approx(expected.area)
    errors = [estimated_error(logits=logits, labels=labels) for logits in seeds]
    assert errors[0] != pytest.approx(errors[1])
    assert curves.error == pytest.approx(sum(errors) / 2)


def test_curves_of_seeds_are_each_of_the_rows_that_it_was_tested_on(tmp_path):
    generator, store = torch.Generator().manual_seed(0), ArtifactStore(tmp_path)
    labels = [torch.arange(30) % 3, torch.arange(30) % 2]
    tables = [torch.randn(30, 3, generator=generator).double().log_softmax(1) for _ in labels]
    keys = ("ab" * 32, "cd" * 32)
    for number, key in enumerate(keys):
        test = {"log_probs": tables[number], "labels": labels[number]}
        test["rows"] = torch.arange(30) + 30 * number
        store.write(ArtifactRef("evaluate", key), {"test": test}, {"metrics": {}})
    results = [
        StudyResult("s", "t", recipe, "finished", predictions=own)
        for recipe, own in (("ce", keys), ("ls", keys[:1]))
    ]
    both, one = measure(results, store, "").curves.values()
    expected = [
        risk_coverage_curve(logits=table, labels=own)
        for table, own in zip(tables, labels, strict=True)
    ]
    assert [list(curve.risk) for curve in both.risk] == [list(curve.risk) for curve in expected]
    assert [list(curve.risk) for curve in one.risk] == [list(expected[0].risk)]
    whole = reliability_curve(logits=torch.cat(tables), labels=torch.cat(labels))
    assert both.reliability.error == pytest.approx(whole.error)


def test_the_risk_is_the_mean_over_seeds_of_all_but_the_first_rows():
    rows = np.linspace(0.95, 0.55, 20)
    probs = np.stack([rows, 1 - rows], axis=1)
    labels = [np.arange(20) % 5 == 4, np.arange(20) >= 10]
    seeds = [risk_coverage_curve(probs=probs, labels=own.astype(int)) for own in labels]
    chart = risk_panel(seeds, seeds[:1], 0.25, "ce")
    means = sum(np.cumsum(own) / np.arange(1, 21) for own in labels) / 2
    expected = [((k + 1) / 20, min(means[k], 0.25)) for k in range(9, 20)]
    ours, grey = points_of(chart, "ours"), points_of(chart, "reference")
    assert ours == [pytest.approx(point) for point in expected]
    assert len(ours) == len(grey)
    assert grey[-1] == pytest.approx((1.0, 0.2))
    assert axes_of(chart) == ["share of rows, most confident first", "error"]
    assert layer_of(chart, "ours")["encoding"]["y"]["axis"]["format"] == "%"
    check_chart(chart)


def trials(count, objective):
    values = [{"m.a": (n * 7 % count) / count, "m.b": 2.0 ** (n % 5)} for n in range(count)]
    told = {"study": "s", "role": "search", "seed": 0, "stage": "train", "configuration": {}}
    return [
        Trial(number=n, key=f"k{n}", parameters=value, objective=objective(value), **told)
        for n, value in enumerate(values)
    ]


def test_importance_finds_the_parameter_that_decides():
    found = importance(trials(30, lambda values: values["m.a"] ** 2), ["m.a", "m.b"])
    assert found["m.a"] > 0.8
    assert sum(found.values()) == pytest.approx(1)


def test_importance_uses_only_trials_with_every_parameter_and_does_not_change_the_log_level():
    whole = trials(10, lambda values: values["m.a"])
    part = replace(whole[0], number=10, parameters={"m.a": 0.5}, objective=9.0)
    before = logging.get_verbosity()
    try:
        logging.set_verbosity(logging.DEBUG)
        names = ["m.a", "m.b"]
        assert importance([*whole, part], names) == importance(whole, names) != {}
        assert logging.get_verbosity() == logging.DEBUG
    finally:
        logging.set_verbosity(before)
    assert importance([*whole[:9], part], names) == {}
    assert importance([*trials(12, lambda values: 0.5), part], names) == {}
    assert importance(whole, []) == {}
