"""The parts of the charts: axes, fronts, intervals, importance."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from orchestrator.report._chart import Axis, Chart, fitting, thinned
from orchestrator.report._page import environment
from orchestrator.report._panels import (
    Curves,
    interval_chart,
    measure,
    reliability_panel,
    risk_panel,
)
from orchestrator.report._scatter import Place, pareto_front, scatter
from orchestrator.report._search import colours
from orchestrator.report._studies import importance
from orchestrator.statistics import Difference
from orchestrator.storage.ledger import Trial
from orchestrator.storage.results import StudyResult
from trainables.metrics import reliability_curve, risk_coverage_curve
from trainables.store.artifacts import ArtifactStore


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (Axis(0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis(0.3, 4.9), [1, 2, 3, 4]),
        (Axis(96.2, 98.5), [96.5, 97, 97.5, 98, 98.5]),
        (Axis(0.5, 600, True), [1, 10, 100]),
        (Axis(1, 30, True), [1, 3, 10, 30]),
    ],
)
def test_ticks_are_round_and_inside(axis, expected):
    assert axis.ticks(5) == pytest.approx(expected)


def test_axes_hold_all_values_even_if_there_is_one():
    for values in ([0.0], [2.0, 2.0], [-1.0, 3.0], [0.001, 5.0]):
        axis = fitting(values)
        assert all(0 < axis.share(value) < 1 for value in values)
    assert fitting([0.001, 5.0]).log
    assert not fitting([0.0, 5.0]).log


def test_long_curves_are_thinned_and_keep_their_ends():
    found = thinned(range(1000), 7)
    assert (len(found), found[0], found[-1]) == (7, 0, 999)
    assert thinned([1, 2], 7) == [1, 2]


def test_a_chart_is_written_as_svg_with_its_text_escaped():
    chart = Chart((100, 50), Axis(0, 1), Axis(0, 1), '"chart"', margin=(0, 0, 0, 0))
    chart.line(((0, 0), (1, 0.5)), "trial", "<b>", "#aabbcc")
    chart.text(1.25, 2, "<i>")
    svg = environment().get_template("charts.html").module.svg
    assert svg(chart) == (
        '<svg viewBox="0 0 100 50" width="100" height="50" role="img" '
        'aria-label="&#34;chart&#34;">'
        '<polyline points="0.0,50.0 100.0,25.0 " class="line trial" color="#aabbcc">'
        "<title>&lt;b&gt;</title></polyline>"
        '<text x="1.2" y="2.0" text-anchor="start">&lt;i&gt;</text></svg>'
    )
    assert 'aria-hidden="true" class="small"' in svg(chart, "small", True)


def test_colours_go_by_rank_from_one_end_of_the_ramp_to_the_other():
    assert colours([7, 0.5, 7]) == {0.5: "#3d6fb6", 7: "#d9742b"}
    assert colours([3]) == {3: "#3d6fb6"}
    assert len(set(colours(range(50)).values())) == 50


def test_the_front_is_what_no_other_beats():
    dice = random.Random(0)
    places = [Place(str(n), dice.randint(0, 6), dice.randint(0, 6), "train") for n in range(25)]
    expected = {
        p
        for p in places
        if not any(
            (q.accuracy > p.accuracy and q.error <= p.error)
            or (q.accuracy >= p.accuracy and q.error < p.error)
            for q in places
        )
    }
    front = pareto_front(places)
    assert set(front) == expected
    assert [p.error for p in front] == sorted(p.error for p in front)


def test_every_recipe_of_the_front_is_named():
    places = [Place(f"recipe-{n}", 90 + n / 9, 1 + n / 3, "refine") for n in range(8)]
    drawn = scatter(places, "recipe-0", 1.2, (700, 400))
    names = {mark.text for mark in drawn.marks if mark.style == "name strong"}
    assert names == {place.recipe for place in places}


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


def test_a_panel_has_a_dot_for_each_bin_that_has_rows():
    probs = np.array([[0.9, 0.1], [0.55, 0.45], [0.56, 0.44], [0.2, 0.8]])
    curve = reliability_curve(probs=probs, labels=[0, 1, 1, 1])
    risk = risk_coverage_curve(probs=probs, labels=[0, 1, 1, 1])
    drawn = reliability_panel(Curves(curve, (risk,), 0.0), "<ce>")
    assert _count(drawn, "circle") == int((curve.count > 0).sum()) == 3
    assert [mark.style for mark in drawn.marks].count("dot over") == 1
    assert drawn.label.startswith("<ce>: accuracy")


def test_curves_of_pixels_are_those_of_stored_ones_and_their_chance_that_of_images(tmp_path):
    generator, store = np.random.default_rng(0), ArtifactStore(tmp_path)
    labels, images = generator.integers(0, 3, 300), np.repeat(np.arange(6), 50)
    seeds = [generator.normal(size=(300, 3)) + 2 * np.eye(3)[labels] for _ in range(2)]
    keys = ("ab" * 32, "cd" * 32)
    for key, logits in zip(keys, seeds, strict=True):
        rows = {"log_probs": logits, "labels": labels, "images": images}
        test = {name: torch.from_numpy(values) for name, values in rows.items()}
        store.write("evaluate", key, {"test": test}, {"metrics": {}})
    result = StudyResult("s", "t", "ce", "finished", predictions=keys)
    curves = measure([result], store, "ce").curves["ce"]

    exponents = np.exp(np.concatenate(seeds))
    probs = exponents / exponents.sum(1, keepdims=True)
    confidence, right = probs.max(1), probs.argmax(1) == np.tile(labels, 2)
    boxes = (mark for mark in reliability_panel(curves, "ce").marks if mark.style == "chance")
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        assert curves.reliability.count[number] == inside.sum()
        if not inside.any():
            continue
        centre = confidence[inside].mean()
        assert curves.reliability.confidence[number] == pytest.approx(centre)
        assert curves.reliability.accuracy[number] == pytest.approx(right[inside].mean())
        moved = 0.0
        for image in range(6):
            own = inside & (np.tile(images, 2) == image)
            others = inside & ~own
            usual = (confidence - right)[others].mean() if others.any() else 0.0
            moved += ((confidence - right)[own] - usual).sum() ** 2
        reach = 1.96 * moved**0.5 / inside.sum()
        low, high = (max(0.0, min(1.0, centre + side * reach)) for side in (-1, 1))
        heights = [y for _, y in next(boxes).points]
        assert max(heights) - min(heights) == pytest.approx(148 * (high - low))
    order = np.argsort(-confidence[:300])
    risk = np.cumsum(~right[:300][order]) / np.arange(1, 301)
    assert curves.risk[0].risk == pytest.approx(risk)


def test_the_risk_panel_ends_at_the_error_of_all_rows():
    probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
    curve = risk_coverage_curve(probs=probs, labels=[0, 0, 1, 1])
    drawn = risk_panel([curve], [], 0.5, "ce")
    (line,) = (mark for mark in drawn.marks if mark.style == "line ours")
    assert line.points[-1] == pytest.approx((160.0, (4 + 114) / 2))


def trials(count, objective):
    values = [{"m.a": (n * 7 % count) / count, "m.b": 2.0 ** (n % 5)} for n in range(count)]
    return [
        Trial(
            study="s",
            number=n,
            key=f"k{n}",
            role="search",
            seed=0,
            stage="train",
            configuration={},
            parameters=value,
            objective=objective(value),
        )
        for n, value in enumerate(values)
    ]


def test_importance_finds_the_parameter_that_decides():
    found = importance(trials(30, lambda values: values["m.a"] ** 2), ["m.a", "m.b"])
    assert found["m.a"] > 0.8
    assert sum(found.values()) == pytest.approx(1)


def test_importance_is_not_told_of_few_trials_or_of_equal_ones():
    assert importance(trials(9, lambda values: values["m.a"]), ["m.a", "m.b"]) == {}
    assert importance(trials(30, lambda values: 0.5), ["m.a"]) == {}
    assert importance(trials(30, lambda values: values["m.a"]), []) == {}
