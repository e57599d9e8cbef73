"""Read charts: what a page holds, and what each layer shows."""

import json
import re
from typing import Any

import vl_convert

from trainables.charts.chart import VERSION, Chart

HELD = re.compile(
    r'<div class="drawing"><script type="application/json">(.*?)</script></div>', re.S
)


def charts_of(page: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in HELD.findall(page)]


def layer_of(chart: Chart, name: str) -> dict[str, Any] | None:
    return next((each for each in chart.spec["layer"] if each["name"] == name), None)


def rows_of(chart: Chart, name: str) -> list[dict[str, Any]]:
    found = layer_of(chart, name)
    return [] if found is None else found.get("data", chart.spec["data"])["values"]


def points_of(chart: Chart, name: str) -> list[tuple[Any, Any]]:
    """Return the values of a layer across and up, of whole curves each point."""
    found, points = layer_of(chart, name), []
    for row in rows_of(chart, name):
        pair = [row[found["encoding"][channel]["field"]] for channel in ("x", "y")]
        whole = all(isinstance(values, list) for values in pair)
        points += list(zip(*pair, strict=True)) if whole else [tuple(pair)]
    return points


def axes_of(chart: Chart) -> list[str]:
    drawn = chart.spec["layer"][-1]["encoding"]
    return [drawn["x"]["title"], drawn["y"]["title"]]


def is_log(chart: Chart, channel: str) -> bool:
    encoding = chart.spec["layer"][-1]["encoding"]
    return encoding[channel].get("scale", {}).get("type") == "log"


def check_chart(chart: Chart) -> None:
    vega = vl_convert.vegalite_to_vega(chart.alone, VERSION)
    assert [axis["title"] for axis in vega["axes"] if not axis.get("grid")] != []
