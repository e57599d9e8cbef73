import base64
import math
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from orchestrator.nightly import CellKey, Finding, NightRecord, Shape, Verdict, grouped, told
from orchestrator.nightly.page import (
    Block,
    figure,
    headline,
    heights,
    night_junit,
    night_summary,
    plotted,
    series_chart,
    series_of,
    sparkline,
    to_csv,
    to_html,
    to_markdown,
)
from tests.charts import axes_of, check_chart, points_of

ECE, PEAK = CellKey("ce", "d", "ece"), CellKey("ce", "d", "peak_memory")
WALL, TOTAL = CellKey("ce", "d", "wall_seconds"), CellKey("*", "*", "total_seconds")
FAILED, GONE = CellKey("ls", "d"), CellKey("fl", "e", "ece")
CELLS = {
    ECE: {0: 0.02, 1: 0.04},
    PEAK: {0: 3.0 * 2**20},
    WALL: {0: 1.5, 1: 2.2526},
    TOTAL: {0: 9.0},
}


def night(name: str, torch: str = "1", **changes: Any) -> NightRecord:
    shape = Shape(("ce", "ls"), ("d", "e"), ("ece", "peak_memory"), (0, 1))
    values = {"cells": CELLS, "failed": {FAILED.pair: "out of memory"}, "shape": shape, **changes}
    return NightRecord(name, 90.0, environment={"torch": torch}, **values)


ALARMS = (
    Finding(FAILED, "hard", "failed", "it failed", since="2026-01-02", causes=("a", "b")),
    Finding(ECE, "soft", "nights", "is worse", value=0.03, expected=0.02, since="2026-01-01"),
    Finding(GONE, "soft", "step", "has a step", value=0.5, expected=0.25, causes=("c",)),
)
CHANGED = "the night before, the benchmark was changed"
FAILURE, WITH = "it failed", "figure with it"
VERDICT = Verdict("2026-01-02", "regression", ALARMS, improvements=ALARMS[1:2], notes=("young",))


@pytest.mark.parametrize(
    ("status", "counts", "expected"),
    [
        ("ok", (0, 0, 2), "as before"),
        ("not comparable", (0, 0, 0), f"not comparable with {CHANGED}"),
        ("suspicious", (0, 1, 0), f"worse, for one night so far: {FAILURE}"),
        ("suspicious", (0, 2, 1), f"worse, for one night so far: {FAILURE}, and 1 more {WITH}"),
        ("regression", (1, 2, 0), f"something got worse: {FAILURE}"),
        ("incomplete", (3, 0, 0), f"results are missing: {FAILURE}, and 2 more figures with it"),
    ],
)
def test_a_headline_names_the_most_important_finding(status, counts, expected):
    alarms, suspicions, improvements = (ALARMS[:1] * count for count in counts)
    verdict = Verdict("2026-01-02", status, alarms, suspicions, improvements)
    assert headline("n", "2026-01-02", verdict) == f"nightly n, 2026-01-02: {expected}"
    assert (verdict.raised, verdict.code) == (bool(alarms), 3 if alarms else 0)


def test_a_summary_tells_all_of_the_last_night():
    history = [night("2025-12-31", "0"), night("2026-01-01"), night("2026-01-02", "2")]
    first = ("worst", "tonight", "expected", "change")
    head = (*first, "since", "finding", "with it", "likely causes")
    points = "+1.00 points"
    worse = (str(ECE), "0.0300", "0.0200", points, "2026-01-01", "is worse", "-", "none known")
    alarms = (
        head,
        (str(FAILED), "-", "-", "-", "2026-01-02", "it failed", "-", "a; b"),
        worse,
        (str(GONE), "0.5000", "0.2500", "+25.00 points", "", "has a step", "-", "c"),
    )
    figures = (
        ("task", "recipe", "ece", "peak_memory"),
        ("d", "ce", "0.0300", "3 MB"),
        ("d", "ls", "failed: out of memory"),
        ("e", "ce", "-", "-"),
        ("e", "ls", "-", "-"),
    )
    blocks = night_summary("n", history, VERDICT)
    assert blocks == [
        Block("nightly n, 2026-01-02: something got worse: it failed; 2 more findings", ("young",)),
        Block("Alarms", table=alarms),
        Block("Improvements", table=(head, worse)),
        Block("Changes since the night before", ("torch: 1 -> 2 (2026-01-02)",)),
        Block("Figures (mean over seeds)", table=figures),
        Block("Environment", table=(("name", "value"), ("torch", "2"))),
    ]
    sight = {ECE: (0.02, 0.03), PEAK: (100.0, 120.0)}
    seen = night_summary("n", history, VERDICT, sight, "against main")
    assert seen[0].heading.startswith("nightly n, against main: ")
    assert seen[5].table[:2] == (figures[0], ("d", "ce", "+1.00 points", "+20.0 %"))
    first = night_summary("n", history[:1], VERDICT)
    assert first[3] == Block("Changes since the night before", ("none",))


@pytest.mark.parametrize(
    ("metric", "chance", "expected"),
    [
        ("ece", 1e-9, "0.0190 -> 0.1660 (+14.70 points; by chance in fewer than 1 of 1,000,000"),
        ("nll", 2.5e-4, "0.0190 -> 0.1660 (+0.1470; by chance in 1 of 4,000"),
        ("wall_seconds", 0.01, "0.02 s -> 0.17 s (+773.7 %; by chance in 1 of 100"),
    ],
)
def test_a_finding_has_the_size_and_the_certainty_of_the_change(metric, chance, expected):
    own = {"value": 0.166, "expected": 0.019, "threshold": 0.0019, "chance": chance}
    worst = Finding(CellKey("ce", "d", metric), "soft", "nights", "is worse", **own)
    other = replace(worst, cell=CellKey("ls", "d", metric), value=0.1)
    groups = grouped([other, worst])
    assert groups == [(worst, other)]
    text = f"ce on d: {metric} {expected} nights), and 1 more figure with it"
    assert told(groups[0]) == text


def test_a_cost_is_as_bad_as_its_ratio_not_as_its_difference():
    own = {"kind": "soft", "reason": "nights", "text": "", "since": "2026-01-02", "expected": 1.0}
    figures = {"wall_seconds": (4.0, 0.12), "images_per_second": (0.25, 0.15), "ece": (2.4, 0.1)}
    findings = [
        Finding(CellKey("ce", "d", metric), **own, value=value, threshold=threshold)
        for metric, (value, threshold) in figures.items()
    ]
    (error,), cost = grouped(findings)
    assert error.cell.metric == "ece"
    assert [found.cell.metric for found in cost] == ["wall_seconds", "images_per_second"]
    (first, *_), _ = grouped([replace(findings[0], value=6.0), *findings[1:]])
    assert first.cell.metric == "wall_seconds"


BLOCKS = [Block("one", ("a_b", "c")), Block("two", table=(("x", "y"), ("1", "2"), ("3", "4")))]


def test_markdown_is_a_list_and_a_table_below_each_heading():
    text = "# one\n\n- a\\_b\n- c\n\n## two\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |\n"
    assert to_markdown(BLOCKS) == text


def test_html_shows_each_chart_as_an_image_below_the_first_block():
    nights = [night("2026-01-01"), night("2026-01-02")]
    charts = [series_chart(nights, ECE), series_chart(nights, WALL)]
    page = to_html(BLOCKS, charts)
    assert "<title>one · calsweep nightly</title>" in page
    images = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page)
    for image, chart in zip(images, charts, strict=True):
        root = ElementTree.fromstring(base64.b64decode(image))
        assert {*axes_of(chart), str(chart.title)} <= {*root.itertext()}
    seen = re.sub(r"(?s)<style>.*?</style>", "", page)
    assert re.findall(r"<(h1|h2|figcaption|th|td)\b[^>]*>(.*?)</\1>", seen) == [
        ("h1", "one"),
        *(("figcaption", chart.label) for chart in charts),
        *(("h2", "two"), ("th", "x"), ("th", "y")),
        *(("th", "<span>1</span>"), ("td", "<span>2</span>")),
        *(("th", "<span>3</span>"), ("td", "<span>4</span>")),
    ]
    assert charts[1].label == f"{WALL}, 2 nights, last 1.88 s"


def test_the_reason_of_a_failure_is_in_the_first_column():
    found = (("worst", "tonight", "what"), ("ce on d: ece", "0.2", "is <worse>"))
    figures = (("task", "recipe", "ece", "nll"), ("d", "ce", "failed: full"), ("d", "ls", "1", "2"))
    page = to_html([Block("n"), Block("Alarms", table=found), Block("Figures", table=figures)])
    rows = re.findall(r"(?s)<tr data-item>(.*?)</tr>", page)
    cells = [re.findall(r"(?s)<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    assert [[re.sub("<[^>]*>", "", cell) for cell in row] for row in cells] == [
        ["ce on d: ece is &lt;worse&gt;", "0.2"],
        ["d failed: full", "ce", ""],
        ["d", "ls", "1", "2"],
    ]


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("ece", None, "-"),
        ("ece", 0.0, "0.0000"),
        ("ece", math.nan, "nan"),
        ("peak_memory", math.inf, "inf"),
        ("ece", 0.12345, "0.1235"),
        ("cifar10-c/acc", 0.5, "0.5000"),
        ("peak_memory", 1.6 * 2**20, "2 MB"),
        ("wall_seconds", 61.234, "61.23 s"),
        ("total_seconds", 3.0, "3.00 s"),
        ("images_per_second", 1234.5678, "1235"),
    ],
)
def test_a_figure_is_shown_in_a_readable_unit(metric, value, expected):
    assert figure(CellKey("ce", "d", metric), value) == expected


def test_a_series_is_drawn_from_its_lowest_to_its_highest():
    assert heights([3.0, None, 1.0, 1.5]) == [1.0, None, 0.0, 0.25]
    assert heights([2.0, None]) == [0.5, None]
    assert sparkline(range(8)) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 0.4, None, 1.0]) == "▁▄·█"
    assert sparkline([]) == ""
    cells = [{ECE: {0: 1.0, 1: 2.0}}, {}, {ECE: {0: math.inf}}, {ECE: {}}]
    nights = [night("2026-01-01", cells=own) for own in cells]
    assert series_of(nights, ECE) == [1.5, None, None, None]


def case(found: ElementTree.Element) -> tuple[Any, ...]:
    named = tuple(found.attrib[name] for name in ("name", "classname", "time"))
    result = [(e.tag, e.attrib["type"], e.attrib["message"], e.text) for e in found]
    return (*named, *result)


@pytest.mark.usefixtures("machine_in_new_york")
def test_junit_tells_time_result_and_surroundings_of_every_pair():
    last = replace(night("2026-01-02"), environment={"torch": "1", "code": "c"})
    (suite,) = ElementTree.fromstring(night_junit("n", last, VERDICT))
    assert (suite.attrib["name"], suite.attrib["time"]) == ("n 2026-01-02", "0.0")
    assert suite.attrib["timestamp"] == "1970-01-01T00:01:30"
    properties = [(p.attrib["name"], p.attrib["value"]) for p in suite.iter("property")]
    assert properties == [("torch", "1"), ("code", "c")]
    worse, gone = f"{ECE}: is worse", f"{GONE}: has a step"
    assert [case(found) for found in suite.iter("testcase")] == [
        ("ce", "d", "3.753", ("failure", "soft", worse, None)),
        ("ls", "d", "0.0", ("failure", "hard", f"{FAILED}: it failed", "a\nb")),
        ("ce", "e", "0.0"),
        ("ls", "e", "0.0"),
        ("night", "2026-01-02", "9.0"),
        ("fl", "e", "0.0", ("failure", "soft", gone, "c")),
    ]


def test_junit_joins_the_alarms_of_a_pair():
    hard = Finding(ECE, "hard", "limit", "is above", causes=("d",))
    both = Verdict("2026-01-02", "regression", (ALARMS[1], hard))
    (suite,) = ElementTree.fromstring(night_junit("n", night("2026-01-02"), both))
    first = next(suite.iter("testcase"))
    assert case(first)[3:] == (("failure", "hard", f"{ECE}: is worse; {ECE}: is above", "d"),)


def test_junit_has_the_alarms_of_the_whole_night():
    slow = Verdict("2026-01-02", "regression", (Finding(TOTAL, "soft", "nights", "is slower"),))
    (suite,) = ElementTree.fromstring(night_junit("n", night("2026-01-02"), slow))
    *others, last = [case(found) for found in suite.iter("testcase")]
    failure = ("failure", "soft", f"{TOTAL}: is slower", None)
    assert last == ("night", "2026-01-02", "9.0", failure)
    assert all(len(other) == 3 for other in others)


def test_csv_has_a_row_for_every_value_in_the_order_of_nights():
    nights = [night("2026-01-02"), night("2026-01-01", cells={ECE: {7: 0.1}})]
    assert to_csv(nights, [WALL, ECE, GONE]).splitlines() == [
        "night,recipe,task,metric,seed,value",
        "2026-01-02,ce,d,wall_seconds,0,1.5",
        "2026-01-02,ce,d,wall_seconds,1,2.2526",
        "2026-01-02,ce,d,ece,0,0.02",
        "2026-01-02,ce,d,ece,1,0.04",
        "2026-01-01,ce,d,ece,7,0.1",
    ]


def test_a_plot_has_a_panel_for_each_series_and_marks_its_alarms():
    nights = [
        night(f"2026-01-0{day}", cells={ECE: {0: value}, PEAK: {0: 3 * 2**20}} if value else {})
        for day, value in ((1, 0.1), (2, 0.0), (3, 0.3), (4, 0.4))
    ]
    chart = series_chart(nights, ECE, [2, 3])
    check_chart(chart)
    days = [f"2026-01-0{day}" for day in (1, 2, 3, 4)]
    assert points_of(chart, "series") == list(zip(days, [0.1, None, 0.3, 0.4], strict=True))
    assert points_of(chart, "alarm") == [("2026-01-03", 0.3), ("2026-01-04", 0.4)]
    assert axes_of(chart) == ["night", "ece"]
    memory = series_chart(nights, PEAK)
    assert points_of(memory, "series")[0] == ("2026-01-01", 3)
    assert axes_of(memory) == ["night", "peak_memory in MB"]
    assert axes_of(series_chart(nights, WALL)) == ["night", "wall_seconds in s"]
    page = plotted(nights, [PEAK, WALL, TOTAL, ECE], {ECE: [2, 3], GONE: [0]})
    assert page.spec["columns"] == 3
    assert [part["title"] for part in page.spec["concat"]] == list(
        map(str, (PEAK, WALL, TOTAL, ECE))
    )
    alarms = [part["layer"][1]["data"]["values"] for part in page.spec["concat"]]
    assert list(map(len, alarms)) == [0, 0, 0, 2]
    assert page.image(".png").startswith(b"\x89PNG")
