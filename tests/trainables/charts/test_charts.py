import gzip
import threading
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.charts import axes_of, check_chart, rows_of
from trainables.charts.bundle import bundle
from trainables.charts.chart import (
    COLOURS,
    Chart,
    amount,
    drawn,
    layer,
    names,
    ramp,
    side_by_side,
    spread_widely,
    thinned,
)
from trainables.charts.reliability import reliability_diagram
from trainables.metrics import reliability_curve

AT = {"x": amount("a", "epoch"), "y": amount("b", "ECE %")}
CHART = drawn("a title", "a label", [layer("dot", "point", AT, tone="blue")], [{"a": 1, "b": 2}])


@pytest.mark.parametrize(
    ("kind", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_the_ending_of_a_file_says_its_kind(kind, start, tmp_path):
    path = tmp_path / f"chart.{kind}"
    CHART.save(path)
    assert path.read_bytes().startswith(start)


def test_a_chart_refuses_an_unknown_file_ending_and_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"^expected one of .pdf, .png, .svg, got '.gif'$"):
        CHART.save(tmp_path / "chart.gif")
    assert list(tmp_path.iterdir()) == []


def test_chart_files_contain_their_texts_and_fixed_colours():
    root = ElementTree.fromstring(CHART.image(".svg"))
    assert {"a title", "epoch", "ECE %"} <= {*root.itertext()}
    text = CHART.image(".svg").decode()
    assert "var(" not in text
    assert COLOURS["blue"] in text
    assert CHART.spec["layer"][0]["mark"]["color"] == "var(--blue)"
    assert CHART.alone["width"] == 340


@pytest.mark.parametrize("odd", ["\x00", "\x01", "\x1b", "\ud800", "\uffff"])
def test_no_text_ends_the_process(odd):
    named = f"a{odd}b"
    at = {"x": names("name", named), "y": AT["y"]}
    chart = drawn(named, named, [layer("dot", "point", at)], [{"name": named, "b": 2}], text=named)
    texts = list(ElementTree.fromstring(chart.image(".svg")).itertext())
    assert texts.count("a\ufffdb") == 4


def test_charts_can_be_saved_from_threads(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    threads = [threading.Thread(target=CHART.save, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({path.read_bytes() for path in paths}) == 1


def test_values_that_are_not_finite_are_refused():
    chart = drawn("", "", [layer("dot", "point", AT)], [{"a": float("nan"), "b": 2}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        chart.image(".svg")


@pytest.mark.parametrize(
    ("values", "widely"), [([1, 20], False), ([1, 20.1], True), ([0, 90], False), ([-1, 90], False)]
)
def test_values_that_are_far_apart_have_a_logarithmic_axis(values, widely):
    assert spread_widely(values) is widely
    assert (ramp("f", "t", values)["scale"].get("type") == "log") is widely


def test_colours_of_unknown_values_are_those_of_the_others():
    assert ramp("gamma", "gamma", [None, 3, 1])["scale"]["domain"] == [1, 3]
    assert ramp("gamma", "gamma", [None])["scale"]["domain"] == [0, 0]


def test_long_curves_are_thinned_and_keep_their_ends():
    found = thinned(range(1000), 7)
    assert (len(found), found[0], found[-1]) == (7, 0, 999)
    assert thinned([1, 2], 7) == [1, 2]
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert len(thinned(range(101))) == 100


def test_charts_of_the_same_names_fit_into_one_file():
    texts = list(
        ElementTree.fromstring(side_by_side(["whole"], [CHART] * 3).image(".svg")).itertext()
    )
    assert (texts.count("whole"), texts.count("a title")) == (1, 3)


@pytest.mark.full
def test_the_bundle_has_all_that_a_page_needs():
    text = gzip.decompress(bundle()).decode()
    assert "window.drawChart" in text
    assert len(bundle()) < 400_000


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return {"probs": rng.dirichlet(np.ones(3), 300), "labels": rng.integers(0, 3, 300)}


@pytest.mark.parametrize("scheme", ["width", "mass"])
def test_the_diagram_shows_the_curve(data, scheme):
    data["probs"][:100] = data["probs"][0]  # Of equal mass some bins are empty, all unlike wide.
    curve = reliability_curve(**data, scheme=scheme)
    assert 0 < (curve.count == 0).sum() < 14
    chart = reliability_diagram(curve, "a < b")
    check_chart(chart)
    filled, rows = curve.count > 0, rows_of(chart, "bar")
    expected = {
        "low": curve.edges[:-1],
        "high": curve.edges[1:],
        "confidence": curve.confidence,
        "accuracy": curve.accuracy,
        "count": curve.count,
        "share": curve.count / 300,
        "bottom": 0.2 * (curve.count / 300 - 1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose([row[name] for row in rows], values[filled])
    over = [row["tone"] == "var(--orange)" for row in rows]
    np.testing.assert_array_equal(over, (curve.accuracy < curve.confidence)[filled])
    assert rows_of(chart, "diagonal") == [{"low": 0, "accuracy": 0, "high": 1, "end": 1}]
    assert rows_of(chart, "chance") == []
    assert (chart.title, chart.text) == ("a < b", f"error {100 * curve.error:.2f} %")
    assert chart.label == f"a < b: accuracy against confidence, error {100 * curve.error:.2f} %"
    bars = Chart("", "", {**chart.spec, "layer": chart.spec["layer"][:1]})
    assert axes_of(bars) == ["confidence", "accuracy"]


def test_the_diagram_shows_chance_if_it_is_known(data):
    curve = reliability_curve(**data)
    low, high = np.linspace(0, 0.5, 15), np.linspace(0.5, 1, 15)
    rows = rows_of(reliability_diagram(curve, chance=(low, high)), "chance")
    filled = curve.count > 0
    np.testing.assert_array_equal([row["least"] for row in rows], low[filled])
    np.testing.assert_array_equal([row["most"] for row in rows], high[filled])
