"""The parts of the charts: axes, fronts, intervals, importance."""

from __future__ import annotations

import random

import numpy as np
import pytest

from orchestrator.report._chart import Axis, Chart, fitting, thinned
from orchestrator.report._page import environment
from orchestrator.report._panels import interval_chart, reliability_panel, risk_panel
from orchestrator.report._scatter import Place, pareto_front, scatter
from orchestrator.report._search import colours
from orchestrator.report._studies import importance
from orchestrator.statistics import Difference
from orchestrator.storage.ledger import Trial
from trainables.metrics import reliability_curve, risk_coverage_curve


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
    drawn = reliability_panel(curve, "<ce>", seeds=1)
    assert _count(drawn, "circle") == int((curve.count > 0).sum()) == 3
    assert [mark.style for mark in drawn.marks].count("dot over") == 1
    assert drawn.label.startswith("<ce>: accuracy")


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
