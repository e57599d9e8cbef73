"""The parts of the charts: axes, fronts, intervals, importance."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import scipy
import torch
from optuna import logging

from orchestrator.report._chart import Axis, Chart, fitting, thinned
from orchestrator.report._panels import (
    Curves,
    _chance,
    interval_chart,
    measure,
    reliability_panel,
    risk_panel,
    widest,
)
from orchestrator.report._scatter import Place, pareto_front, scatter
from orchestrator.report._search import colours
from orchestrator.report._studies import importance
from orchestrator.statistics import Difference, PairedBootstrap, TaskComparison
from orchestrator.storage.ledger import Trial
from orchestrator.storage.results import StudyResult
from trainables.common.stages import ArtifactRef
from trainables.metrics import (
    bin_spread_of_groups,
    estimated_error,
    reliability_curve,
    risk_coverage_curve,
)
from trainables.store.artifacts import ArtifactStore


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (Axis(0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis(0.3, 4.9), [1, 2, 3, 4]),
        (Axis(96.2, 98.5), [96.5, 97, 97.5, 98, 98.5]),
        (Axis(0.5, 600, True), [1, 10, 100]),
        (Axis(1, 30, True), [1, 3, 10, 30]),
        (Axis(1.5, 9, True), [2, 5]),
        (Axis(-0.5, 0.5), [-0.4, -0.2, 0, 0.2, 0.4]),
        (Axis(0, 0.6), [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    ],
)
def test_ticks_are_round_and_inside(axis, expected):
    assert axis.ticks(5) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "log", "expected"),
    [
        ([0.0, 1.0], None, Axis(-0.06, 1.06)),
        ([1.0, 20.0], None, Axis(-0.14, 21.14)),
        ([1.0, 20.1], None, Axis(20.1**-0.06, 20.1**1.06, True)),
        ([1.0, 20.1], False, Axis(-0.146, 21.246)),
        ([1.0, 2.0], True, Axis(2**-0.06, 2**1.06, True)),
        ([-3.0, -2.0], None, Axis(-3.06, -1.94)),
        ([2.0, 2.0], None, Axis(1.8, 2.2)),
        ([-2.0], None, Axis(-2.2, -1.8)),
        ([0.0], None, Axis(-1.0, 1.0)),
        ([3.0], True, Axis(1.5, 6.0, True)),
    ],
)
def test_an_axis_leaves_room_at_its_ends(values, log, expected):
    found = fitting(values, log)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.log is expected.log
    middle = (found.low * found.high) ** 0.5 if found.log else (found.low + found.high) / 2
    assert found.share(middle) == pytest.approx(0.5)


def test_long_curves_are_thinned_and_keep_their_ends():
    found = thinned(range(1000), 7)
    assert (len(found), found[0], found[-1]) == (7, 0, 999)
    assert thinned([1, 2], 7) == [1, 2]
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert len(thinned(range(101))) == 100


def test_a_frame_has_ticks_below_and_lines_across():
    chart = Chart((100, 60), Axis(0, 2), Axis(0, 10), "", margin=(6, 8, 18, 38))
    assert (chart.top, chart.right, chart.bottom, chart.left) == (6, 92, 42, 38)
    chart.frame([(1, "one")], [(2.5, "low"), (10, "high")])
    chart.box((1, 1), (5, 10), "box")
    chart.box((0, 2), (10, 10), "line")
    found = [(mark.tag, mark.style, mark.text, list(mark.points)) for mark in chart.marks]
    assert found == [
        ("polyline", "line grid", "", [(38, 33), (92, 33)]),
        ("text", "", "low", [(34, 36.5)]),
        ("polyline", "line grid", "", [(38, 6), (92, 6)]),
        ("text", "", "high", [(34, 9.5)]),
        ("polyline", "tick", "", [(65, 42), (65, 45)]),
        ("text", "", "one", [(65, 55)]),
        ("polygon", "box", "", [(65, 6), (65.5, 6), (65.5, 24), (65, 24)]),
        ("polygon", "line", "", [(38, 6), (92, 6), (92, 6.5), (38, 6.5)]),
    ]
    assert [mark.anchor for mark in chart.marks if mark.tag == "text"] == ["end", "end", "middle"]
    above = Chart((100, 60), chart.x, Axis(5, 10), "", margin=(6, 8, 18, 38))
    above.frame([(1, "one")], [])
    assert above.marks == chart.marks[4:6]


def test_colours_go_by_rank_from_one_end_of_the_ramp_to_the_other():
    assert colours([7, 0.5, 7]) == {0.5: "#3d6fb6", 7: "#d9742b"}
    assert colours([3]) == {3: "#3d6fb6"}
    ramp = ["#3d6fb6", "#2f93a8", "#55a868", "#b59a2f", "#d9742b"]
    assert list(colours([9, 4, 1, 2, 3]).values()) == ramp
    assert colours(range(9))[1] == "#3681af"  # Halfway between the first two.
    assert len(set(colours(range(50)).values())) == 50


def test_the_front_is_what_no_other_beats():
    dice = random.Random(0)
    places = [Place(str(n), dice.randint(0, 6), dice.randint(0, 6), "train") for n in range(25)]

    def beats(q, p):
        same = (q.accuracy, q.error) == (p.accuracy, p.error)
        return q.accuracy >= p.accuracy and q.error <= p.error and not same

    expected = {p for p in places if not any(beats(q, p) for q in places)}
    front = pareto_front(places)
    assert set(front) == expected
    assert [p.error for p in front] == sorted(p.error for p in front)


def marks(chart, style):
    return [mark for mark in chart.marks if style in mark.style.split()]


def test_the_scatter_joins_its_front_and_rings_the_baseline():
    places = [
        Place("a", 90.0, 1.0, "train"),
        Place("b", 94.0, 3.0, "refine"),
        Place("c", 92.0, 2.0, "calibrate"),
        Place("d", 91.0, 2.5, "train"),
    ]
    chart = scatter(places, "d", 1.5, (700, 400))
    assert not chart.x.log
    assert chart.label == "Accuracy against ECE; on the front: a, c, b"
    corners = [(1, 90), (2, 90), (2, 92), (3, 92), (3, 94)]
    (front,) = marks(chart, "front")
    assert front.points == [chart.at(*corner) for corner in corners]
    (ring,) = marks(chart, "ring")
    assert ring.points == [chart.at(2.5, 91)]
    for place in places:
        (mark,) = (m for m in marks(chart, "mark") if m.text.startswith(f"{place.recipe}:"))
        assert mark.style == f"mark {place.stage}"
        (x, y) = np.mean(mark.points, axis=0)
        assert (x, y) == pytest.approx(chart.at(place.error, place.accuracy), abs=2)
    (floor,) = marks(chart, "floor")
    assert floor.points[0] == (chart.left, chart.top)
    assert floor.points[2] == pytest.approx((chart.at(1.5, 90)[0], chart.bottom))
    names = sorted((mark.text, mark.style) for mark in marks(chart, "name"))
    assert names == [*((name, "name strong") for name in "abc"), ("d", "name")]
    low, high = ([m.points[0] for m in chart.marks if m.text == text] for text in ("1", "3"))
    assert low[0] < high[0]
    axes = [(mark.text, mark.points[0], mark.anchor) for mark in marks(chart, "axis")]
    assert axes == [
        ("accuracy %", (6, 11), "start"),
        ("ECE %, lower is better", (688, 397), "end"),
    ]
    for floor in (None, 0.5):
        assert not marks(scatter(places, "d", floor, (700, 400)), "floor")
    whole = scatter(places, "d", 99.0, (700, 400))
    assert marks(whole, "floor")[0].points[2] == (whole.right, whole.bottom)


def test_the_baseline_is_named_before_others_that_are_beaten():
    best = Place("best", 99.0, 1.0, "train")
    crowd = [Place(f"r{n:02}", 90 + n / 100, 5 + n / 100, "train") for n in range(40)]
    for baseline in ("r05", "r35"):
        chart = scatter([best, *crowd], baseline, None, (328, 200))
        names = [mark.text for mark in marks(chart, "name")]
        assert names[:2] == ["best", baseline]
        assert len(names) < 41


def test_errors_that_lie_far_apart_are_shown_by_their_ratio():
    for most, log in ((6.0, False), (6.1, True)):
        pair = [Place("a", 90, 1.0, "train"), Place("b", 91, most, "train")]
        assert scatter(pair, "", None, (700, 400)).x.log is log
    zero = [Place("a", 90, 0.0, "train"), Place("b", 91, 9.0, "train")]
    assert not scatter(zero, "", None, (700, 400)).x.log


def overlap(one, other):
    return all(one[k] < other[k + 2] and one[k + 2] > other[k] for k in (0, 1))


def test_names_overlap_neither_each_other_nor_marks():
    dice = random.Random(1)
    spots = [(dice.uniform(90, 95), dice.uniform(1, 4)) for _ in range(80)]
    places = [Place(f"r{n:02}", *spot, "train") for n, spot in enumerate(spots)]
    chart = scatter(places, "r00", 1.5, (400, 250))
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}
    boxes = []
    for mark in marks(chart, "name"):
        (x, y), width = mark.points[0], 6.3 * 3
        left = x - width * shift[mark.anchor]
        boxes.append((left, y - 10, left + width, y + 2))
    assert 5 < len(boxes) == len({mark.text for mark in marks(chart, "name")}) < 80
    for place in places:
        x, y = chart.at(place.error, place.accuracy)
        boxes.append((x - 5, y - 5, x + 5, y + 5))
    for one, other in combinations(boxes[: -len(places)], 2):
        assert not overlap(one, other)
    (floor,) = (mark.points[0] for mark in chart.marks if mark.text == "noise floor")
    words = (floor[0], floor[1] - 10, floor[0] + 11 * 6.3, floor[1] + 2)
    for name in boxes[: -len(places)]:
        assert not overlap(name, words)
        assert not any(overlap(name, mark) for mark in boxes[-len(places) :])
        assert chart.left <= name[0] < name[2] <= 400
        assert 0 <= name[1] < name[3] <= chart.bottom


def _count(chart, tag):
    return sum(mark.tag == tag for mark in chart.marks)


@pytest.mark.parametrize(
    ("found", "dots", "arrows"),
    [
        (Difference(0.01, -0.01, 0.02), 1, 0),
        (Difference(0.01, -0.01, 0.2), 1, 1),
        (Difference(0.5, 0.4, 0.6), 0, 1),
    ],
)
def test_an_interval_that_does_not_fit_has_an_arrow(found, dots, arrows):
    drawn = interval_chart(found, 0.05)
    assert (_count(drawn, "circle"), _count(drawn, "polygon")) == (dots, arrows)
    assert all(0 <= x <= 90 and 0 <= y <= 16 for mark in drawn.marks for x, y in mark.points)


def test_an_interval_is_drawn_around_zero():
    chart = interval_chart(Difference(0.02, -0.01, 0.09), 0.05)
    zero, reach = marks(chart, "zero")[0], marks(chart, "line")[1]
    assert (chart.left, chart.right, chart.top, chart.bottom) == (6, 84, 1, 15)
    assert zero.points == [(45, 15), (45, 1)]
    assert reach.points == [pytest.approx((45 - 39 / 5, 8)), (84, 8)]
    (dot,) = (mark for mark in chart.marks if mark.tag == "circle")
    assert dot.points == [pytest.approx((45 + 2 / 5 * 39, 8))]
    (arrow,) = (mark for mark in chart.marks if mark.tag == "polygon")
    assert arrow.points == ((89.5, 8), (83.5, 4), (83.5, 12))
    turned = interval_chart(Difference(-0.02, -0.09, 0.01), 0.05)
    (arrow,) = (mark for mark in turned.marks if mark.tag == "polygon")
    assert arrow.points == ((0.5, 8), (6.5, 4), (6.5, 12))


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


def test_chance_is_that_of_the_rows_of_one_seed():
    """Two seeds of the same rows: how often of 50 rows 40 to 45 are right, by plain sums."""
    probs = np.tile([[0.9, 0.1], [0.55, 0.45]], (50, 1))
    truths = np.tile([0, 1], 50)
    curve = reliability_curve(probs=np.tile(probs, (2, 1)), labels=np.tile(truths, 2))
    risk = risk_coverage_curve(probs=probs, labels=truths)
    chart = reliability_panel(Curves(curve, (risk, risk), 0.0), "ce")
    chances = [math.comb(50, k) * 0.9**k * 0.1 ** (50 - k) for k in range(51)]
    sums = np.cumsum(chances)
    low, high = (int(np.argmax(sums >= end)) / 50 for end in (0.025, 0.975))
    box = marks(chart, "chance")[1]
    heights = sorted(y for _, y in box.points)
    assert [heights[0], heights[-1]] == pytest.approx([chart.at(0, y)[1] for y in (high, low)])
    across = sorted(x for x, _ in box.points)
    assert [across[0], across[-1]] == pytest.approx([chart.at(k / 15, 0)[0] for k in (13, 14)])
    over, under = marks(chart, "dot")
    assert (over.style, under.style) == ("dot over", "dot under")
    assert over.points == [pytest.approx(chart.at(0.55, 0.0))]
    assert over.text == "confidence 0.550, accuracy 0.000, 50.0 % of all"
    assert under.radius == pytest.approx(1.6 + 2.6 * 0.5**0.5)
    gap = marks(chart, "gap")[1]
    assert gap.points == [pytest.approx(chart.at(0.9, y)) for y in (0.9, 1.0)]
    shares = marks(chart, "share")
    assert [max(y for _, y in m.points) - min(y for _, y in m.points) for m in shares] == [11, 11]
    assert chart.bottom < min(y for m in shares for _, y in m.points)


def test_rows_that_seeds_do_not_share_evenly_are_rounded_to_whole_ones():
    # Of two rows 0, 1 and 2 are right with chances of 1, 18 and 81 %.
    reliability = SimpleNamespace(count=np.array([3]), confidence=np.array([0.9]))
    curves = SimpleNamespace(reliability=reliability, risk=(None, None), spread=None)
    assert _chance(curves) == ([0.5], [1.0])
    curves.reliability.confidence[0] = 1 + 1e-12
    assert _chance(curves) == ([1.0], [1.0])


def test_chance_needs_no_statistics_of_scipy_and_is_the_same(monkeypatch):
    counts, confidence = np.meshgrid(
        [0, 1, 2, 7, 50, 999, 10**6], [math.nan, 1e-15, *np.linspace(0.01, 0.99, 99), 1.0]
    )
    rows, right = np.maximum(counts, 1), np.nan_to_num(confidence)
    expected = [scipy.stats.binom.ppf(end, rows, right) / rows for end in (0.025, 0.975)]
    reliability = SimpleNamespace(count=counts, confidence=confidence)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    found = _chance(SimpleNamespace(reliability=reliability, risk=(None,), spread=None))
    np.testing.assert_array_equal(found, expected)


TICKS = ((0.0, "0"), (0.5, "0.5"), (1.0, "1"))


def test_a_panel_has_a_dot_for_each_bin_that_has_rows():
    probs = np.array([[0.9, 0.1], [0.55, 0.45], [0.56, 0.44], [0.2, 0.8]])
    curve = reliability_curve(probs=probs, labels=[0, 1, 1, 1])
    risk = risk_coverage_curve(probs=probs, labels=[0, 1, 1, 1])
    drawn = reliability_panel(Curves(curve, (risk,), 0.0), "<ce>")
    assert _count(drawn, "circle") == int((curve.count > 0).sum()) == 3
    assert [mark.style for mark in drawn.marks].count("dot over") == 1
    # Of four rows one is right at 0.9, one at 0.8, and two are wrong at 0.555.
    assert drawn.label == "<ce>: accuracy against confidence, error 35.25 %"
    words = [(mark.text, mark.points[0], mark.anchor) for mark in drawn.marks if mark.tag == "text"]
    assert words == [
        *((text, pytest.approx((18, drawn.at(0, y)[1] + 3.5)), "end") for y, text in TICKS),
        *((text, pytest.approx((drawn.at(x, 0)[0], 194)), "middle") for x, text in TICKS),
    ]


def test_what_is_measured_is_told_step_by_step(tmp_path):
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
    boxes = (mark for mark in reliability_panel(curves, "ce").marks if mark.style == "chance")
    for number in np.flatnonzero(whole.count):
        centre, reach = whole.confidence[number], 1.96 * spread[number]
        low, high = (max(0.0, min(1.0, centre + side * reach)) for side in (-1, 1))
        heights = [y for _, y in next(boxes).points]
        assert max(heights) - min(heights) == pytest.approx(148 * (high - low))
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
    (ours,), (grey,) = marks(chart, "ours"), marks(chart, "reference")
    expected = [chart.at((k + 1) / 20, min(means[k], 0.25)) for k in range(9, 20)]
    assert ours.points == [pytest.approx(point) for point in expected]
    assert len(ours.points) == len(grey.points)
    assert grey.points[-1] == pytest.approx(chart.at(1.0, 0.2))
    words = [mark.text for mark in chart.marks if mark.tag == "text"]
    assert words == ["0 %", "10 %", "20 %", "0", "50", "100 %"]


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


def test_importance_is_of_trials_that_have_every_parameter_and_leaves_optunas_log_alone():
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
