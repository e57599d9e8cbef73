"""Charts as Vega-Lite specifications, the parts they are made of, and their files."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

VERSION = "6.4"  # Of Vega-Lite.
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
KINDS = (".pdf", ".png", ".svg")  # Endings of files.
SCALE = 2.0  # Pixels of a PNG file for each pixel of a chart.
POINTS = 100  # Most points of a curve: more cannot be told apart.
WIDE = 20.0  # Ratio of the largest to the smallest value from which an axis is logarithmic.

RAMP = ("#3d6fb6", "#2f93a8", "#55a868", "#b59a2f", "#d9742b")  # Read on white and on black.
# What XML 1.0 has no way to write.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
COLOUR = re.compile(r"var\(--(\w+)\)")
# Of files. Pages have variables of the same names, which follow the theme of the reader.
COLOURS = {
    "paper": "#ffffff",
    "ink": "#16191d",
    "soft": "#59626c",
    "rule": "#dde1e6",
    "faint": "#f4f6f8",
    "blue": "#1f6fb2",
    "orange": "#b54c0b",
    "green": "#2b8a5a",
    "chance": "#e3e7eb",
    "reference": "#a9b1ba",
}
TEXT = {"labelColor": "var(--soft)", "titleColor": "var(--ink)", "titleFontWeight": 500}
CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **TEXT,
        "gridColor": "var(--rule)",
        "domainColor": "var(--soft)",
        "tickColor": "var(--soft)",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "labelLimit": 120,
    },
    "axisX": {"grid": False},
    "legend": {**TEXT, "symbolLimit": 12, "symbolStrokeWidth": 3, "symbolOpacity": 1},
    "title": {"color": "var(--ink)", "subtitleColor": "var(--soft)", "anchor": "start"},
    "text": {"color": "var(--ink)", "fontSize": 12},
    "line": {"strokeJoin": "round"},
    "autosize": {"type": "fit", "contains": "padding"},
}
PICKED: Spec = {"name": "picked", "value": None}  # Which rows are chosen, in all charts of a group.
# The wheel alone scrolls the page, and so does a finger.
ZOOM: Spec = {
    "name": "zoom",
    "bind": "scales",
    "select": {
        "type": "interval",
        "zoom": "wheel![event.shiftKey]",
        "translate": "[pointerdown[event.pointerType === 'mouse'], window:pointerup] "
        "> window:pointermove!",
    },
}


@dataclass(frozen=True)
class Chart:
    """A chart and its words.

    Attributes:
        title: What it shows; pages write it above the chart.
        label: What a screen reader says in its place.
        spec: In Vega-Lite. It is as wide as its place on a page; its colours may be ``var(--NAME)``
            of ``COLOURS``.
        text: Figures that belong to the title.
        width: Of a file, in pixels.
    """

    title: str
    label: str
    spec: Spec
    text: str = ""
    width: int = 340

    @property
    def alone(self) -> Spec:
        """Return the specification for a file, which has neither a place nor a theme."""
        spec = {"$schema": SCHEMA, **self.spec, "config": {**CONFIG, "background": "white"}}
        if spec.get("width") == "container":
            spec["width"] = self.width
        if self.title:
            spec["title"] = {"text": self.title, "subtitle": self.text}
        return _plain(spec)

    def image(self, kind: str) -> bytes:
        """Return the chart as an image of one of ``KINDS``, or raise ``ValueError``."""
        import vl_convert

        spec = json.dumps(self.alone, allow_nan=False)
        if kind == ".png":
            return vl_convert.vegalite_to_png(spec, VERSION, scale=SCALE)
        if kind == ".pdf":
            return vl_convert.vegalite_to_pdf(spec, VERSION)
        if kind == ".svg":
            return vl_convert.vegalite_to_svg(spec, VERSION).encode()
        raise ValueError(f"expected one of {', '.join(KINDS)}, got {kind!r}")

    def save(self, path: str | Path) -> None:
        """Write the chart as an image; the ending of the file is one of ``KINDS``."""
        image = self.image(Path(path).suffix)
        Path(path).write_bytes(image)


def writable(text: str) -> str:
    """Return a text without characters that XML cannot hold: they abort vl_convert."""
    return FORBIDDEN.sub("\ufffd", text)


def _plain(value: Any) -> Any:
    """Return a part of a specification for a file: colours instead of variables."""
    if isinstance(value, str):
        return COLOUR.sub(lambda found: COLOURS.get(found[1], found[0]), writable(value))
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def drawn(
    title: str,
    label: str,
    layers: Sequence[Spec],
    rows: Rows = (),
    *,
    height: int = 240,
    width: int = 340,
    text: str = "",
    **more: Any,
) -> Chart:
    """Return a chart of layers, the first one at the back; layers without rows show ``rows``."""
    spec = {"width": "container", "height": height, "description": label}
    values = {"data": {"values": list(rows)}, "params": [PICKED]}
    return Chart(title, label, {**spec, **values, **more, "layer": list(layers)}, text, width)


def layer(
    name: str,
    mark: str,
    encoding: Spec,
    rows: Rows | None = None,
    tone: str = "",
    params: Sequence[Spec] = (),
    transform: Sequence[Spec] = (),
    **looks: Any,
) -> Spec:
    """Return a layer of marks, cut at the frame, in one of ``COLOURS``, perhaps with own rows."""
    looks |= {"color": f"var(--{tone})"} if tone else {}
    found = {"name": name, "mark": {"type": mark, "clip": True, **looks}, "encoding": encoding}
    if rows is not None:
        found["data"] = {"values": list(rows)}
    more = {"params": list(params), "transform": list(transform)}
    return {**found, **{key: value for key, value in more.items() if value}}


def amount(field: str, title: str, *, log: bool = False, **more: Any) -> Spec:
    """Return a channel of numbers, whose axis is as long as they need, with ``more`` keys."""
    scale: Spec = {"type": "log"} if log else {"zero": False}
    scale |= {"nice": False, "padding": 10, **more.pop("scale", {})}
    axis = more.pop("axis", {})
    if "values" not in axis:  # Of which Vega shows no more than that.
        axis = {"tickCount": 5, **axis}
    shown = {"field": field, "type": "quantitative", "title": title}
    return {**shown, "scale": scale, "axis": axis, **more}


def ramp(field: str, title: str, values: Iterable[float | None]) -> Spec:
    """Return a channel of colours, from blue for the lowest of the values to orange."""
    found = [value for value in values if value is not None] or [0.0]
    scale = {"domain": [min(found), max(found)], "range": list(RAMP)}
    scale |= {"type": "log"} if spread_widely(found) else {}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def names(field: str, title: str, **more: Any) -> Spec:
    """Return a channel of names."""
    return {"field": field, "type": "nominal", "title": title, **more}


def curves(*fields: str) -> list[Spec]:
    """Return the transform of rows that hold a whole curve each, as one list a field."""
    return [{"flatten": list(fields)}]


def tips(**fields: str) -> list[Spec]:
    """Return the lines of a tooltip: field to its title. Numbers are shown in six digits."""
    return [{"field": name, "title": title, "format": ".6~g"} for name, title in fields.items()]


def pick(field: str) -> tuple[Spec, Spec]:
    """Return a parameter to choose rows with a click, and the opacity that shows the choice."""
    click = {"name": "pick", "select": {"type": "point", "fields": [field]}}
    chosen = {"test": f"picked === null || datum[{field!r}] === picked", "value": 1}
    return click, {"condition": chosen, "value": 0.12}


def spread_widely(values: Iterable[float], ratio: float = WIDE) -> bool:
    """Return True if values are positive and so far apart that their axis is logarithmic."""
    found = list(values)
    return min(found) > 0 and max(found) / min(found) > ratio


def thinned(points: Sequence[T], most: int = POINTS) -> list[T]:
    """Return at most so many of a sequence, evenly chosen, both ends among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def side_by_side(title: Sequence[str], charts: Sequence[Chart], columns: int = 4) -> Chart:
    """Return several charts as one, for a file."""
    parts = {"concat": [_part(chart) for chart in charts], "columns": columns}
    return Chart("", title[0], {"title": list(title), "params": [PICKED], **parts})


def _part(chart: Chart) -> Spec:
    """Return a chart without its names, which must be unique, and what serves a reader only."""
    kept = {key: value for key, value in chart.spec.items() if key != "params"}
    layers = [
        {key: value for key, value in each.items() if key not in ("name", "params")}
        for each in chart.spec["layer"]
    ]
    return {**kept, "width": chart.width, "title": chart.title, "layer": layers}
